// The predictions that the clock has made: a program repeats its works step by step, and the
// formulas of products try many tiles.
//
// A table of a fixed size, in which a newer prediction replaces an older one at the same index.
// Not thread-safe: the clock's lock guards it.
#pragma once

#include "time/cost/cost.h"

#include <bit>
#include <cstdint>
#include <vector>

namespace anyrig::virtual_gpu {

class Predictions {
 public:
  // Returns `gpu_seconds` of `work` on the device `gpu`, which never changes.
  double seconds(const GpuFacts& gpu, const Work& work) {
    if (work.family == Family::Memory) {
      return gpu_seconds(gpu, work); // faster than a look-up
    }
    if (table_.empty()) {
      table_.resize(kEntries);
    }
    Entry& entry = table_[index_of(work)];
    if (entry.gpu != &gpu || !(entry.work == work)) {
      entry = {&gpu, gpu_seconds(gpu, work), work};
    }
    return entry.seconds;
  }

 private:
  static constexpr int kIndexBits = 12;
  static constexpr size_t kEntries = size_t{1} << kIndexBits;

  struct alignas(64) Entry { // begins with what a look-up reads, in few cache lines
    const GpuFacts* gpu = nullptr;
    double seconds = 0;
    Work work;
  };

  static size_t index_of(const Work& work) {
    // The sums distinguish most works, but not the passes of a convolution or transposed products.
    const double distinction = work.family == Family::Product ? work.product.m
        : work.family == Family::Convolution ? static_cast<double>(work.convolution.pass)
                                             : 0;
    uint64_t hash = 1;
    for (const double number :
         {work.flops, work.bytes_read, work.bytes_written, work.share, distinction}) {
      hash ^= hash >> 32;
      hash = (hash ^ std::bit_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15;
    }
    // Small whole numbers differ in their upper bits only, and so do their multiples.
    return hash >> (64 - kIndexBits);
  }

  std::vector<Entry> table_;
};

} // namespace anyrig::virtual_gpu
