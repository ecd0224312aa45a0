// Philox 4x32-10, the counter-based generator of CUDA's random numbers.
//
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). Counter and
// key are laid out as in cuRAND's curand_init(seed, subsequence, offset):
//
//   key      seed, low word first
//   counter  (offset / 4) in words 0 and 1, subsequence in words 2 and 3
//
// One counter gives four 32-bit words. Each thread of a launch has its own subsequence.
#pragma once

#include <array>
#include <cstdint>

namespace anyrig::virtual_gpu {

using PhiloxWords = std::array<uint32_t, 4>;

inline PhiloxWords philox4x32_10(PhiloxWords counter, std::array<uint32_t, 2> key) {
  // Unrolling makes this a third faster than the loop that compilers generate.
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
        static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

/// The start of a launch: the generator's seed and its offset, in 32-bit words per thread.
struct PhiloxPosition {
  uint64_t seed;
  uint64_t offset;
};

/// The random words of one thread of a launch.
class PhiloxThread {
 public:
  PhiloxThread(PhiloxPosition start, uint64_t subsequence)
      : seed_(start.seed), subsequence_(subsequence), offset_(start.offset) {}

  /// Returns the next word, as curand().
  uint32_t next() {
    const uint64_t at = offset_++;
    return block(at / 4)[at % 4];
  }

  /// Returns the next four words, as curand4().
  PhiloxWords next4() {
    if (offset_ % 4 != 0) return {next(), next(), next(), next()};
    const PhiloxWords words = block(offset_ / 4);
    offset_ += 4;
    return words;
  }

 private:
  PhiloxWords block(uint64_t index) const {
    return philox4x32_10(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
         static_cast<uint32_t>(subsequence_), static_cast<uint32_t>(subsequence_ >> 32)},
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  }

  uint64_t seed_, subsequence_, offset_;
};

}  // namespace anyrig::virtual_gpu
