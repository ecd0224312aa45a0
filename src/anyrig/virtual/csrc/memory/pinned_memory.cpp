#include "memory/pinned_memory.h"

#include "device/device.h"
#include "time/clock.h"
#include "time/streams.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

// The address ranges that count as pinned. Pinning has no other effect.
class PinnedRanges {
 public:
  bool holds(const void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto next = sizes_.upper_bound(address);
    if (next == sizes_.begin()) {
      return false;
    }
    const auto& [start, bytes] = *std::prev(next);
    return static_cast<const char*>(address) <
        static_cast<const char*>(start) + std::max<size_t>(bytes, 1);
  }

  void remember(const void* address, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    sizes_[address] = bytes;
  }

  void forget(const void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    sizes_.erase(address);
  }

  static PinnedRanges& get() {
    static auto* ranges = new PinnedRanges(); // outlives every pinned tensor
    return *ranges;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, size_t> sizes_;
};

// A time of the virtual clock, in place of a CUDA event.
struct Moment {
  double seconds;
};

using PinnedBlock = at::HostBlock<c10::Stream>;

struct PinnedCache final : at::CachingHostAllocatorImpl<c10::Stream, Moment> {
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  void allocate_host_memory(size_t bytes, void** address) override {
    *address = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    PinnedRanges::get().remember(*address, bytes);
  }

  void free_block(PinnedBlock* block) override {
    PinnedRanges::get().forget(block->ptr_);
    c10::GetDefaultCPUAllocator()->raw_deallocate(block->ptr_);
  }

  void record_stream(std::optional<std::vector<Moment>>& moments, c10::Stream stream) override {
    moments->push_back({Clock::get().done_at(stream)});
  }

  bool query_event(Moment& moment) override { return Clock::get().passed(moment.seconds); }

  c10::Stream get_current_stream() const override {
    return current_stream(static_cast<c10::DeviceIndex>(current_device()));
  }

  bool stream_is_capturing(c10::Stream /*stream*/) const override { return false; }
};

void release_pinned(void* block);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedCache, &release_pinned> {
  static PinnedAllocator& get() {
    static auto* allocator = new PinnedAllocator(); // outlives every pinned tensor
    return *allocator;
  }
};

void release_pinned(void* block) {
  if (forked_after_use()) {
    return; // a forked child may inherit held locks
  }
  PinnedAllocator::get().free(block);
}

} // namespace

at::HostAllocator* pinned_allocator() {
  return &PinnedAllocator::get();
}

bool is_pinned(const void* address) {
  return PinnedRanges::get().holds(address);
}

void pin(const void* address, size_t bytes) {
  PinnedRanges::get().remember(address, bytes);
}

void unpin(const void* address) {
  PinnedRanges::get().forget(address);
}

void record_pinned_use(const c10::DataPtr& data, const void* address, const c10::Stream& stream) {
  PinnedAllocator::get().record_event(const_cast<void*>(address), data.get_context(), stream);
}

} // namespace anyrig::virtual_gpu
