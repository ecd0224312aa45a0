#include "memory/host_memory.h"

#include "memory/kept_host_memory.h"
#include "memory/memory.h"

#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>

#include <cstring>

namespace anyrig::virtual_gpu {
namespace {

constexpr c10::DeviceIndex kNoDevice = -1;
thread_local c10::DeviceIndex scoped_device = kNoDevice;

// Larger allocations are mapped, so that the system creates each page when it is first written to.
// Below, the C library's allocator is faster.
constexpr size_t kMinMappedBytes = size_t{1} << 28;

// Larger zeros are mapped, too: the system provides zeroed pages when they are first read.
constexpr size_t kMinMappedZeros = size_t{32} << 20;

struct Mapping {
  void* address;
  size_t bytes;
};

void unmap(void* context) {
  auto* mapping = static_cast<Mapping*>(context);
  munmap(mapping->address, mapping->bytes);
  delete mapping;
}

class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(scoped_device != kNoDevice)) {
      check_room(bytes, scoped_device);
      return take_host_memory(bytes); // sized exactly: oneDNN takes over this pointer
    }
    return inner_->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return inner_->is_simple_data_ptr(data);
  }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    inner_->copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator* inner_;
};

} // namespace

void watch_host_allocations() {
  constexpr uint8_t kOverDefault = 1;
  c10::SetCPUAllocator(new WatchedAllocator(c10::GetCPUAllocator()), kOverDefault);
}

KernelScope::KernelScope(c10::DeviceIndex device) : previous_(scoped_device) {
  scoped_device = device;
}

KernelScope::~KernelScope() {
  scoped_device = previous_;
}

c10::DataPtr allocate_host(size_t bytes, Content content) {
  const bool is_zeroed = content == Content::Zeros;
  if (bytes < (is_zeroed ? kMinMappedZeros : kMinMappedBytes)) {
    auto memory = take_host_memory(bytes);
    if (is_zeroed && bytes > 0) {
      std::memset(memory.get(), 0, bytes);
    }
    return memory;
  }
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, bytes, kProtection, kFlags, -1, 0);
  TORCH_CHECK(
      address != MAP_FAILED, "the host has no memory for ", bytes,
      " bytes of a virtual GPU; use a smaller model or "
      "shape-only mode, which holds no data");
  return {address, new Mapping{address, bytes}, &unmap, c10::Device(at::kCPU)};
}

} // namespace anyrig::virtual_gpu
