// GPU memory that does not come from the caching allocator, such as cuMemCreate's. It counts in
// torch.cuda.mem_get_info, but not in torch.cuda.memory_allocated.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

class CardMemory {
 public:
  // Raises RuntimeError, "CUDA driver error: out of memory", when the GPU is full.
  CardMemory(c10::DeviceIndex device, size_t bytes);
  ~CardMemory();
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;

 private:
  c10::DeviceIndex device_;
  size_t bytes_;
};

} // namespace anyrig::virtual_gpu
