// Host memory that stands in for a card's: what CPU kernels allocate on behalf of a virtual device.
#pragma once

#include "device/device.h"

#include <c10/core/Allocator.h>

namespace anyrig::virtual_gpu {

// Puts a watch in front of PyTorch's CPU allocator. While a `KernelScope` is alive on a thread,
// each allocation there is first checked against the room of the scope's device, so that a result
// that does not fit raises torch.OutOfMemoryError before it is computed, as on a card.
void watch_host_allocations();

class KernelScope {
 public:
  explicit KernelScope(c10::DeviceIndex device);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// A card's driver gives out no memory that shows what another program left there; what its caching
// allocator hands out again is as the program left it.
enum class Content { Any, Zeros };

// Host memory for `bytes` of a device. Pages of large pieces exist once they are written to, so
// that a program may take memory it hardly uses, as it may on a card larger than the host.
c10::DataPtr allocate_host(size_t bytes, Content content);

// Lets the C library keep the pages of freed memory for the next allocation.
void keep_freed_pages();

} // namespace anyrig::virtual_gpu
