#include "memory/placed_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0 // without it, the kernel treats the address as a hint
#endif

namespace anyrig::virtual_gpu {
namespace {

void* as_pointer(uint64_t address) {
  return reinterpret_cast<void*>(address); // NOLINT(performance-no-int-to-ptr)
}

// The mapped segments, by first address. Addresses are never reused.
struct MappedSegments {
  struct Segment {
    size_t bytes;
    size_t pieces = 0; // number of blocks in use
  };
  std::mutex mutex;
  std::map<uint64_t, Segment> by_address;

  static MappedSegments& get() {
    static auto* segments = new MappedSegments(); // memory may be freed while the process ends
    return *segments;
  }
};

void release_placed(void* first) {
  auto& segments = MappedSegments::get();
  std::lock_guard<std::mutex> guard(segments.mutex);
  const auto found = segments.by_address.find(reinterpret_cast<uint64_t>(first));
  if (--found->second.pieces == 0) {
    munmap(first, found->second.bytes);
    segments.by_address.erase(found);
  }
}

bool map_at(void* first, size_t bytes) {
  void* mapped = mmap(
      first, bytes, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != MAP_FAILED && mapped != first) {
    munmap(mapped, bytes);
  }
  return mapped == first;
}

} // namespace

c10::DataPtr place(uint64_t address, std::pair<uint64_t, size_t> segment) {
  void* first = as_pointer(segment.first);
  auto& segments = MappedSegments::get();
  std::lock_guard<std::mutex> guard(segments.mutex);
  auto found = segments.by_address.find(segment.first);
  if (found == segments.by_address.end()) {
    if (!map_at(first, segment.second)) {
      return {};
    }
    found = segments.by_address.insert({segment.first, {segment.second}}).first;
  }
  ++found->second.pieces;
  return {as_pointer(address), first, &release_placed, c10::Device(at::kCPU)};
}

} // namespace anyrig::virtual_gpu
