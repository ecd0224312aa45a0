// The host memory behind virtual GPUs, and the check of what CPU kernels allocate for them.
#pragma once

#include "device/device.h"

#include <c10/core/Allocator.h>

namespace anyrig::virtual_gpu {

// Wraps PyTorch's CPU allocator. While a `KernelScope` is alive on a thread, the allocator checks
// each of the thread's allocations against the free memory of the scope's device, so that a result
// that does not fit raises torch.OutOfMemoryError before it is computed, as on a GPU.
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

// What new memory contains. A GPU's driver never exposes another program's data, so fresh memory is
// zero; memory that the caching allocator reuses keeps its old content.
enum class Content { Any, Zeros };

// Allocates `bytes` of host memory for a device. The system creates the pages of large allocations
// when they are first written to, so a program may allocate more memory than the host has and write
// to a part of it. Raises RuntimeError when the host has no memory.
c10::DataPtr allocate_host(size_t bytes, Content content);

} // namespace anyrig::virtual_gpu
