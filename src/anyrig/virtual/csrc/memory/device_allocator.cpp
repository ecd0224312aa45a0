// PyTorch's interface of the devices' memory: allocation, statistics, peaks.

#include "memory/gpu_memory.h"
#include "memory/gpu_state.h"
#include "memory/kept_host_memory.h"
#include "memory/memory.h"
#include "memory/stacks.h"

#include <cstring>

namespace anyrig::virtual_gpu {
namespace {

c10::CachingAllocator::Stat as_stat(const Stat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

c10::CachingAllocator::StatArray as_stats(const PoolStat& stats) {
  c10::CachingAllocator::StatArray result;
  for (size_t i = 0; i < stats.size(); ++i) {
    result[i] = as_stat(stats[i]);
  }
  return result;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    return virtual_gpu::allocate(bytes, static_cast<c10::DeviceIndex>(current_device()));
  }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    if (!shape_only()) {
      std::memcpy(destination, source, bytes);
    }
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t pool) override {
    for (int i = 0; i < device_count(); ++i) {
      gpu_state(static_cast<c10::DeviceIndex>(i))
          .allocator.empty_cache(pool, stack_for(RecordStacks::kAll));
    }
    drop_kept_host_memory();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data, stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const AllocatorStats stats = gpu_state(device).allocator.stats();
    c10::CachingDeviceAllocator::DeviceStats result;
    result.allocation = as_stats(stats.allocation);
    result.segment = as_stats(stats.segment);
    result.active = as_stats(stats.active);
    result.inactive_split = as_stats(stats.inactive_split);
    result.allocated_bytes = as_stats(stats.allocated_bytes);
    result.reserved_bytes = as_stats(stats.reserved_bytes);
    result.active_bytes = as_stats(stats.active_bytes);
    result.inactive_split_bytes = as_stats(stats.inactive_split_bytes);
    result.requested_bytes = as_stats(stats.requested_bytes);
    result.oversize_allocations = as_stat(stats.oversize_allocations);
    result.oversize_segments = as_stat(stats.oversize_segments);
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    result.num_sync_all_streams = stats.num_sync_all_streams;
    result.num_device_alloc = stats.num_device_alloc;
    result.num_device_free = stats.num_device_free;
    return result;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    gpu_state(device).allocator.reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    gpu_state(device).allocator.reset_peaks();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    provide_context(device); // as cudaMemGetInfo does
    return memory_info(device);
  }
};

} // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new Allocator();
  return allocator;
}

} // namespace anyrig::virtual_gpu
