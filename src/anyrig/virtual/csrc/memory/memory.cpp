#include "memory/memory.h"

#include "memory/allocator_options.h"
#include "time/clock.h"
#include "memory/freed_host_memory.h"
#include "memory/host_memory.h"
#include "time/streams.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

// Streams as the allocator asks about them: a mark is a moment of the virtual clock.
class ClockEvents final : public StreamEvents {
 public:
  explicit ClockEvents(c10::DeviceIndex device) : device_(device) {}

  Mark record(StreamKey stream) override {
    return Clock::get().done_at(as_stream(stream));
  }
  bool passed(StreamKey /*stream*/, Mark mark) override {
    return Clock::get().passed(mark);
  }
  void wait(StreamKey /*stream*/, Mark mark) override {
    Clock::get().wait_on_host(mark);
  }

 private:
  c10::Stream as_stream(StreamKey stream) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device_), stream);
  }

  c10::DeviceIndex device_;
};

struct Card {
  Card(size_t total_bytes, c10::DeviceIndex device)
      : driver(total_bytes),
        events(device),
        allocator(driver, events, first_address(device), allocator_options_from_environment()) {}

  // Far from what the host uses, and devices 2^52 bytes apart.
  static uint64_t first_address(c10::DeviceIndex device) {
    return (uint64_t{1} << 62) + (static_cast<uint64_t>(device) << 52);
  }

  PrivateCard driver;
  ClockEvents events;
  CachingAllocator allocator;
  FreedHostMemory freed;
};

Card& card(c10::DeviceIndex device) {
  // Never freed: memory may be given back while the process ends.
  static auto* cards = [] {
    auto* made = new std::vector<std::unique_ptr<Card>>();
    for (size_t i = 0; i < devices().size(); ++i) {
      made->push_back(std::make_unique<Card>(
          static_cast<size_t>(devices()[i].memory_bytes), static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  check_device_index(device);
  return *(*cards)[device];
}

void release(void* context) {
  delete static_cast<DeviceMemory*>(context);
}

std::vector<OutOfMemoryObserver>& observers() {
  static auto* all = new std::vector<OutOfMemoryObserver>();
  return *all;
}

Block* book(size_t bytes, c10::DeviceIndex device) {
  check_not_forked();
  open_context(device);
  try {
    return card(device).allocator.allocate(bytes, current_stream(device).id());
  } catch (const OutOfMemory& error) {
    for (const auto& observer : observers()) {
      observer(device, error);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.message(device));
  }
}

c10::DataPtr as_data(std::unique_ptr<DeviceMemory> memory) {
  void* address = memory->host.get();
  if (address == nullptr && memory->block != nullptr) {
    address = reinterpret_cast<void*>(memory->block->address); // NOLINT(performance-no-int-to-ptr)
  }
  const c10::Device device(kDeviceType, memory->device);
  return {address, memory.release(), &release, device};
}

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

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (int i = 0; i < device_count(); ++i) {
      card(static_cast<c10::DeviceIndex>(i)).allocator.empty_cache();
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data, stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const AllocatorStats stats = card(device).allocator.stats();
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
    card(device).allocator.reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    card(device).allocator.reset_peaks();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return memory_info(device);
  }
};

} // namespace

DeviceMemory::~DeviceMemory() {
  if (auto* twin = spare_twin.exchange(nullptr)) {
    c10::intrusive_ptr<c10::TensorImpl>::reclaim(twin);
  }
  if (block != nullptr) {
    Card& of_device = card(device);
    of_device.freed.keep(block->address, bytes, std::move(host));
    of_device.allocator.free(block);
  }
}

DeviceMemory* device_memory(const c10::DataPtr& data) {
  return data.get_deleter() == &release ? static_cast<DeviceMemory*>(data.get_context()) : nullptr;
}

c10::DataPtr allocate(size_t bytes, c10::DeviceIndex device) {
  auto memory = std::make_unique<DeviceMemory>();
  memory->device = device;
  memory->bytes = bytes;
  memory->block = book(bytes, device);
  if (!shape_only()) {
    if (memory->block != nullptr) {
      memory->host = card(device).freed.take(memory->block->address, bytes);
    }
    if (memory->host.get() == nullptr) {
      memory->host = allocate_host(bytes);
    }
  }
  return as_data(std::move(memory));
}

c10::DataPtr adopt(c10::DataPtr host, size_t bytes, c10::DeviceIndex device) {
  auto memory = std::make_unique<DeviceMemory>();
  memory->device = device;
  memory->bytes = bytes;
  memory->block = book(bytes, device);
  memory->host = std::move(host);
  return as_data(std::move(memory));
}

void check_room(size_t bytes, c10::DeviceIndex device) {
  // No request is rounded up by more than this; beyond it a new segment fits without a search.
  constexpr size_t kLargestRounding = 20 * kMiB;
  Card& of_device = card(device);
  if (of_device.driver.free_bytes() >= bytes + kLargestRounding &&
      of_device.allocator.memory_fraction() >= 1) {
    return;
  }
  of_device.allocator.free(book(bytes, device));
}

void record_stream(const c10::DataPtr& data, const c10::Stream& stream) {
  if (auto* memory = device_memory(data)) {
    card(memory->device).allocator.record_stream(memory->block, stream.id());
  }
}

void add_out_of_memory_observer(OutOfMemoryObserver observer) {
  observers().push_back(std::move(observer));
}

CachingAllocator& caching_allocator(c10::DeviceIndex device) {
  return card(device).allocator;
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  const auto& driver = card(device).driver;
  return {driver.free_bytes(), driver.total_bytes()};
}

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new Allocator();
  return allocator;
}

} // namespace anyrig::virtual_gpu
