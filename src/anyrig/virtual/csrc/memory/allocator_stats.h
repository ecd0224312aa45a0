// The counters of torch.cuda.memory_stats, named as in c10::CachingDeviceAllocator::DeviceStats.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace anyrig::virtual_gpu {

/// One counter with its peak and its totals.
struct Stat {
  int64_t current = 0;
  int64_t peak = 0;       // the largest `current` since the last reset_peak
  int64_t allocated = 0;  // the sum of all increases since the last reset_accumulated
  int64_t freed = 0;      // the sum of all decreases since the last reset_accumulated

  void increase(size_t amount) {
    current += static_cast<int64_t>(amount);
    peak = std::max(peak, current);
    allocated += static_cast<int64_t>(amount);
  }
  void decrease(size_t amount) {
    current -= static_cast<int64_t>(amount);
    freed += static_cast<int64_t>(amount);
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

/// One counter for both pools together and for each pool, indexed as
/// c10::CachingAllocator::StatType.
struct PoolStat : std::array<Stat, 3> {
  static constexpr size_t kAggregate = 0, kSmallPool = 1, kLargePool = 2;

  void increase(bool small, size_t amount) {
    (*this)[kAggregate].increase(amount);
    (*this)[small ? kSmallPool : kLargePool].increase(amount);
  }
  void decrease(bool small, size_t amount) {
    (*this)[kAggregate].decrease(amount);
    (*this)[small ? kSmallPool : kLargePool].decrease(amount);
  }
  void change(bool small, int64_t amount) {
    if (amount > 0) increase(small, static_cast<size_t>(amount));
    if (amount < 0) decrease(small, static_cast<size_t>(-amount));
  }
};

struct AllocatorStats {
  PoolStat allocation;            // count: blocks handed out
  PoolStat segment;               // count: segments, except expandable ones
  PoolStat active;                // count: blocks handed out or still in use by another stream
  PoolStat inactive_split;        // count: free blocks in segments that are split
  PoolStat allocated_bytes;       // blocks handed out, after rounding
  PoolStat reserved_bytes;        // memory taken from the driver, free or not
  PoolStat active_bytes;          // bytes of the active blocks
  PoolStat inactive_split_bytes;  // bytes of the inactive_split blocks
  PoolStat requested_bytes;       // bytes that callers requested, before rounding
  Stat oversize_allocations;      // count: blocks of max_split_size or more
  Stat oversize_segments;         // count: segments of max_split_size or more
  int64_t num_alloc_retries = 0;  // retries after the cache was emptied
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;  // cudaMalloc and cuMemMap
  int64_t num_device_free = 0;   // cudaFree and cuMemUnmap

  template <class Visit>
  void for_each(Visit visit) {
    for (PoolStat* stats :
         {&allocation, &segment, &active, &inactive_split, &allocated_bytes, &reserved_bytes,
          &active_bytes, &inactive_split_bytes, &requested_bytes})
      for (Stat& stat : *stats) visit(stat);
    visit(oversize_allocations);
    visit(oversize_segments);
  }
};

}  // namespace anyrig::virtual_gpu
