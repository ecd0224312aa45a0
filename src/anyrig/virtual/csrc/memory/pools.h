// torch.cuda.MemPool, and the functions that route allocations to a pool.
#pragma once

#include "memory/private_pools.h"

#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace anyrig::virtual_gpu {

// Returns an unused pool ID: for a pool that the program creates, or for a CUDA graph.
PoolId new_pool_id(bool is_user_created);

// The allocator of a pool in place of cudaMalloc: ncclMemAlloc, whose memory is ordinary device
// memory here. Custom allocators (CUDAPluggableAllocator) would need a GPU.
struct PoolAllocator {};
std::shared_ptr<PoolAllocator> nccl_allocator();

// A pool that lives as long as this object, or longer while graphs or scopes use it.
class MemoryPool {
 public:
  MemoryPool(
      std::shared_ptr<PoolAllocator> allocator,
      bool is_user_created,
      bool serves_when_full,
      bool never_splits);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  PoolId id() const { return id_; }
  c10::DeviceIndex device() const { return device_; }
  const std::shared_ptr<PoolAllocator>& allocator() const { return allocator_; }
  int users() const;

 private:
  const std::shared_ptr<PoolAllocator> allocator_;
  const PoolId id_;
  const c10::DeviceIndex device_;
};

void bind_memory_pools(py::module& module);

} // namespace anyrig::virtual_gpu
