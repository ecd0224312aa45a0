// Storages that share memory until one of them is written to (torch._lazy_clone): PyTorch's, over
// memory of a virtual device.
//
//   before              DataPtr ──context──> DeviceMemory
//   once it is shared   DataPtr ──context──> COWDeleterContext ──> address ··table··> DeviceMemory
//
// PyTorch shares memory only whose context is its address, as on a card, so a table leads on from
// there. It gives a storage memory of its own when somebody asks for a pointer to write to. Twins
// write past that, so whoever changes a tensor by its twin asks first.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>

namespace anyrig::virtual_gpu {

struct DeviceMemory;

// What the table has for memory that is shared, or was; null for any other.
DeviceMemory* memory_by_address(const c10::DataPtr& data);
void forget_address(const void* address);

inline bool is_lazy_clone(const c10::StorageImpl& storage) {
  return c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

// Ends the sharing: a copy on the storage's device, unless nobody else is left.
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
