// torch.cuda.MemPool, and the functions that send allocations to a pool.
#pragma once

#include "memory/private_pools.h"

#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

// A name for a pool that no pool has yet: of the program's own, or of a CUDA graph.
PoolId new_pool_id(bool is_user_created);

// A pool that lives as long as this object, and longer while graphs or scopes use it.
class MemoryPool {
 public:
  MemoryPool(bool is_user_created, bool serves_when_full, bool never_splits);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  PoolId id() const { return id_; }
  c10::DeviceIndex device() const { return device_; }
  int users() const;

 private:
  const PoolId id_;
  const c10::DeviceIndex device_;
};

void bind_memory_pools(py::module& module);

} // namespace anyrig::virtual_gpu
