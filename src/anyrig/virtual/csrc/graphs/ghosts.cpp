#include "graphs/ghosts.h"

#include "dispatch/container.h"
#include "dispatch/twin.h"

#include <ATen/ops/empty.h>

namespace anyrig::virtual_gpu {
namespace {

c10::StorageImpl* impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like) {
  auto ghost = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  c10::TensorImpl& impl = *ghost.unsafeGetTensorImpl();
  const c10::TensorImpl& from = *like.unsafeGetTensorImpl();
  impl.set_storage_offset(from.storage_offset());
  impl.set_sizes_and_strides(from.sizes(), from.strides());
  impl._set_conj(from.is_conj());
  impl._set_neg(from.is_neg());
  if (from.is_wrapped_number()) {
    impl.set_wrapped_number(true);
  }
  return ghost;
}

// Returns all bytes of the tensor's storage as a CPU tensor.
at::Tensor host_bytes(const at::Tensor& tensor) {
  const at::Tensor twin = twin_of(tensor);
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(twin.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(static_cast<int64_t>(twin.storage().nbytes()));
  return bytes;
}

} // namespace

c10::Storage* Ghosts::ghost_of(const at::Tensor& tensor) {
  if (!is_virtual(tensor) || is_container(tensor) || !tensor.has_storage()) {
    return nullptr;
  }
  c10::StorageImpl* impl = impl_of(tensor);
  DeviceMemory* memory = device_memory(impl->data_ptr());
  if (memory == nullptr) {
    return nullptr;
  }
  const auto found = known_.find(impl);
  if (found != known_.end() && found->second.data == impl->data()) {
    return &found->second.ghost;
  }
  c10::Storage ghost(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), impl->nbytes(), alias(*memory), device_allocator(),
          /*resizable=*/true));
  auto owner = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
  Known known{c10::weak_intrusive_ptr<c10::StorageImpl>(owner), impl->data(), std::move(ghost)};
  return &known_.insert_or_assign(impl, std::move(known)).first->second.ghost;
}

at::Tensor Ghosts::make_ghost(const at::Tensor& tensor) {
  const c10::Storage* ghost = ghost_of(tensor);
  return ghost == nullptr ? tensor : tensor_over(*ghost, tensor);
}

void Ghosts::add_allocated(const at::Tensor& tensor) {
  if (is_virtual(tensor) && !is_container(tensor) && tensor.has_storage()) {
    reuse_pool_bytes(*impl_of(tensor));
  }
  if (ghost_of(tensor) != nullptr) {
    allocated_.insert(impl_of(tensor));
  }
}

void Ghosts::preserve(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || is_container(tensor)) {
    return;
  }
  const at::Tensor memory = make_ghost(tensor); // keeps the storage's address from being reused
  const auto* impl = impl_of(tensor);
  if (allocated_.count(impl) > 0 || !preserved_storages_.insert(impl).second) {
    return;
  }
  preserved_.push_back({memory, host_bytes(memory).clone()});
}

void Ghosts::restore() {
  for (const auto& preserved : preserved_) {
    host_bytes(preserved.memory).copy_(preserved.bytes);
  }
  preserved_.clear();
}

} // namespace anyrig::virtual_gpu
