// Lazy clones (torch._lazy_clone) of tensors on a virtual device: storages share memory until one
// of them is written to.
//
//   unshared            DataPtr ──context──> DeviceMemory
//   shared              DataPtr ──context──> COWDeleterContext ──> address ··table··> DeviceMemory
//
// PyTorch shares memory only if its context is its address, as on a GPU, so a table maps addresses
// to memory. A storage gets its own memory when a caller requests a mutable pointer. Kernels write
// to twins without such a request, so callers of a kernel that writes call `give_own_memory` first.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>

namespace anyrig::virtual_gpu {

struct DeviceMemory;

// Returns the memory that the table has for `data` if it is or was shared; otherwise null.
DeviceMemory* memory_by_address(const c10::DataPtr& data);
void forget_address(const void* address);

inline bool is_lazy_clone(const c10::StorageImpl& storage) {
  return c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

// Ends the sharing. Copies on the storage's device, unless no other storage shares the memory.
void copy_lazy_clone(c10::StorageImpl& storage);

inline void give_own_memory(c10::StorageImpl& storage) {
  if (C10_UNLIKELY(is_lazy_clone(storage))) {
    copy_lazy_clone(storage);
  }
}

inline void give_own_memory(const at::TensorBase& tensor) {
  if (tensor.has_storage()) {
    give_own_memory(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }
}

} // namespace anyrig::virtual_gpu
