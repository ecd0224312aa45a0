// The temporary memory of CUB's radix sort of (key, value) pairs.
#pragma once

#include <algorithm>
#include <cstdint>

namespace anyrig::virtual_gpu {

// Returns the bytes that sorting `count` pairs of keys and values of `element_bytes` each takes:
// cub/device/dispatch/dispatch_radix_sort.cuh, as tuned for compute capability 8.0 and later.
//
//   up to one tile:  1 byte
//   more:            histograms, look-back state of each tile, and a second buffer of keys and of
//                    values, each aligned to 256 bytes
inline int64_t radix_sort_bytes(int64_t count, int64_t element_bytes) {
  constexpr int64_t kDigitBits = 8;
  constexpr int64_t kDigits = int64_t{1} << kDigitBits;
  const auto scaled = [&](int64_t items) {
    return std::max<int64_t>(1, items * 4 / std::max<int64_t>(4, element_bytes));
  };
  const int64_t single_tile = 256 * scaled(19);
  if (count <= single_tile) {
    return 1;
  }
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t tile = 384 * scaled(21);
  const int64_t tiles = (count + tile - 1) / tile;
  const int64_t passes = 8 * element_bytes / kDigitBits;
  return aligned(passes * kDigits * 4) + aligned(tiles * kDigits * 4) +
      2 * aligned(count * element_bytes) + aligned(passes * 4);
}

} // namespace anyrig::virtual_gpu
