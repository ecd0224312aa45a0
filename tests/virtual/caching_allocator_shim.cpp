// A C interface to caching_allocator.h for ctypes. Tests drive the streams: `queue_work` adds a unit
// of work, `finish_work` completes all queued work.
#include "memory/caching_allocator.h"

#include <cstring>

using namespace anyrig::virtual_gpu;

namespace {

class ManualStreams final : public StreamEvents {
 public:
  Mark record(StreamKey stream) override { return queued[stream]; }
  bool passed(StreamKey stream, Mark mark) override { return finished[stream] >= mark; }
  void wait(StreamKey stream, Mark mark) override {
    finished[stream] = std::max(finished[stream], mark);
  }
  std::map<StreamKey, Mark> queued, finished;
};

struct Device {
  Device(size_t bytes, const AllocatorOptions& options)
      : gpu(bytes), allocator(gpu, streams, kFirstAddress, options) {}
  static constexpr uint64_t kFirstAddress = uint64_t{1} << 52;
  PrivateGpu gpu;
  ManualStreams streams;
  CachingAllocator allocator;
  OutOfMemory last_error;
};

} // namespace

extern "C" {

Device* device_new(size_t bytes) {
  return new Device(bytes, {});
}
void device_delete(Device* device) {
  delete device;
}

void set_options(
    Device* device,
    bool expandable,
    size_t large_segment,
    size_t max_split,
    size_t max_rounding,
    double garbage,
    const size_t* divisions) {
  AllocatorOptions options;
  options.expandable_segments = expandable;
  options.large_segment_bytes = large_segment;
  options.max_split_bytes = max_split;
  options.max_non_split_rounding_bytes = max_rounding;
  options.garbage_collection_threshold = garbage;
  std::copy(divisions, divisions + 16, options.roundup_power2_divisions.begin());
  device->allocator.set_options(options);
}

/// Returns null when out of memory; `shape` receives address and bytes.
Block* allocate(Device* device, size_t bytes, StreamKey stream, uint64_t* shape) {
  try {
    Block* block = device->allocator.allocate(bytes, stream);
    shape[0] = block ? block->address : 0;
    shape[1] = block ? block->bytes : 0;
    return block;
  } catch (const OutOfMemory& error) {
    device->last_error = error;
    shape[1] = ~uint64_t{0};
    return nullptr;
  }
}
bool has_room(Device* device, size_t bytes, StreamKey stream) {
  return device->allocator.has_room(bytes, stream);
}
void free_block(Device* device, Block* block) {
  device->allocator.free(block);
}
void record_stream(Device* device, Block* block, StreamKey stream) {
  device->allocator.record_stream(block, stream);
}
void empty_cache(Device* device) {
  device->allocator.empty_cache();
}
void empty_pool(Device* device, uint64_t pool) {
  device->allocator.empty_cache({0, pool});
}

/// Routes later allocations of `stream` to a pool and adds a user.
void begin_pool(Device* device, uint64_t pool, StreamKey stream) {
  device->allocator.with_pools([&](PrivatePools& pools) {
    pools.begin_route({0, pool}, [stream](StreamKey asked) { return asked == stream; });
  });
}
void end_pool(Device* device, uint64_t pool) {
  device->allocator.with_pools([&](PrivatePools& pools) { pools.end_route({0, pool}); });
}
void release_pool(Device* device, uint64_t pool) {
  device->allocator.with_pools([&](PrivatePools& pools) { pools.remove_user({0, pool}); });
}
/// Creates a pool with one user.
void make_pool(Device* device, uint64_t pool, bool serves_when_full, bool never_splits) {
  device->allocator.with_pools([&](PrivatePools& pools) {
    PrivatePool& made = pools.add_user({0, pool});
    made.serves_when_full = serves_when_full;
    made.small.never_splits = made.large.never_splits = never_splits;
  });
}
bool has_pool(Device* device, uint64_t pool) {
  bool found = false;
  device->allocator.with_pools(
      [&](PrivatePools& pools) { found = pools.find({0, pool}) != nullptr; });
  return found;
}

void record_history(Device* device, bool enabled, size_t max_entries) {
  HistoryOptions options;
  options.enabled = enabled;
  options.max_entries = max_entries;
  device->allocator.with_history([&](MemoryHistory& history) { history.set_options(options); });
}
/// Writes (action, bytes, stream, pool) for at most `limit` entries. Returns the number of entries.
size_t read_history(Device* device, uint64_t* out, size_t limit) {
  size_t count = 0;
  device->allocator.with_history([&](MemoryHistory& history) {
    for (const TraceEntry& entry : history.entries()) {
      if (count++ >= limit) continue;
      for (uint64_t value :
           {static_cast<uint64_t>(entry.action), uint64_t{entry.bytes},
            static_cast<uint64_t>(entry.stream), entry.pool.second})
        *out++ = value;
    }
  });
  return count;
}
void queue_work(Device* device, StreamKey stream) {
  ++device->streams.queued[stream];
}
void finish_work(Device* device, StreamKey stream) {
  device->streams.finished[stream] = device->streams.queued[stream];
}
bool work_is_finished(Device* device, StreamKey stream) {
  return device->streams.passed(stream, device->streams.record(stream));
}
void set_memory_fraction(Device* device, double fraction) {
  device->allocator.set_memory_fraction(fraction);
}
double memory_fraction(Device* device) {
  return device->allocator.memory_fraction();
}
void reset_peaks(Device* device) {
  device->allocator.reset_peaks();
}
void reset_accumulated(Device* device) {
  device->allocator.reset_accumulated();
}
bool reserve_externally(Device* device, size_t bytes) {
  return device->gpu.reserve(bytes);
}
size_t free_bytes(Device* device) {
  return device->gpu.free_bytes();
}

/// Writes (current, peak, allocated, freed) for each statistic, then the five counters.
void read_stats(Device* device, int64_t* out) {
  AllocatorStats stats = device->allocator.stats();
  stats.for_each([&out](const Stat& stat) {
    for (int64_t value : {stat.current, stat.peak, stat.allocated, stat.freed}) *out++ = value;
  });
  for (int64_t value :
       {stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams, stats.num_device_alloc,
        stats.num_device_free})
    *out++ = value;
}

/// Writes ten numbers for each of at most `limit` blocks. Returns the number of blocks.
size_t read_snapshot(Device* device, uint64_t* out, size_t limit) {
  size_t count = 0;
  for (const SegmentSnapshot& segment : device->allocator.snapshot()) {
    for (const SegmentSnapshot::Part& part : segment.parts) {
      if (count++ >= limit) continue;
      for (uint64_t value :
           {segment.address, uint64_t{segment.total_bytes}, static_cast<uint64_t>(segment.stream),
            uint64_t{segment.small}, segment.pool.second, part.address, uint64_t{part.bytes},
            uint64_t{part.requested_bytes}, uint64_t{part.allocated}, uint64_t{part.active}})
        *out++ = value;
    }
  }
  return count;
}

void read_error(Device* device, int index, char* text, size_t limit) {
  std::strncpy(text, device->last_error.message(index).c_str(), limit - 1);
  text[limit - 1] = 0;
}

void format_bytes_of(size_t bytes, char* text, size_t limit) {
  std::strncpy(text, format_bytes(bytes).c_str(), limit - 1);
  text[limit - 1] = 0;
}
}
