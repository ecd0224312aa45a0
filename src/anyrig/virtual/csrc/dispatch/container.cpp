#include "dispatch/container.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>

namespace anyrig::virtual_gpu {
namespace {

using c10::DispatchKey;

at::SparseTensorImpl& coordinates(const at::Tensor& tensor) {
  return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl& compressed(const at::Tensor& tensor) {
  return *static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::native::NestedTensorImpl& nested(const at::Tensor& tensor) {
  return *static_cast<at::native::NestedTensorImpl*>(tensor.unsafeGetTensorImpl());
}

DispatchKey key_on(c10::Device device, const at::Tensor& model) {
  const bool is_sparse = model.is_sparse();
  switch (device.type()) {
    case c10::DeviceType::CPU:
      return is_sparse ? DispatchKey::SparseCPU : DispatchKey::SparseCsrCPU;
    case c10::DeviceType::Meta:
      return is_sparse ? DispatchKey::SparseMeta : DispatchKey::SparseCsrMeta;
    default:
      return is_sparse ? DispatchKey::SparseCUDA : DispatchKey::SparseCsrCUDA;
  }
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].is_same(b[i])) {
      return false;
    }
  }
  return true;
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    return false;
  }
  return !a.is_sparse() ||
      (coordinates(a).sparse_dim() == coordinates(b).sparse_dim() &&
       coordinates(a).coalesced() == coordinates(b).coalesced());
}

void set_parts(
    at::SparseTensorImpl& impl,
    const at::SparseTensorImpl& model,
    const std::vector<at::Tensor>& parts) {
  impl.raw_resize_(model.sparse_dim(), model.dense_dim(), model.sizes());
  impl.set_indices_and_values_unsafe(parts[0], parts[1]);
  impl.set_coalesced(model.coalesced());
}

} // namespace

const std::vector<ContainerKeys>& container_keys() {
  static const std::vector<ContainerKeys> keys = {
      {"SparseCUDA", DispatchKey::SparseCUDA, DispatchKey::SparseCPU},
      {"SparseCsrCUDA", DispatchKey::SparseCsrCUDA, DispatchKey::SparseCsrCPU},
      {"NestedTensorCUDA", DispatchKey::NestedTensorCUDA, DispatchKey::NestedTensorCPU},
  };
  return keys;
}

bool is_container(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kKeys(
      {DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor});
  return tensor.key_set().has_any(kKeys);
}

std::vector<at::Tensor> parts_of(const at::Tensor& container) {
  if (container.is_nested()) {
    return {nested(container).get_unsafe_storage_as_tensor()};
  }
  if (container.is_sparse()) {
    return {coordinates(container).indices(), coordinates(container).values()};
  }
  const auto& impl = compressed(container);
  return {impl.compressed_indices(), impl.plain_indices(), impl.values()};
}

at::Tensor contain(const at::Tensor& model, const std::vector<at::Tensor>& parts) {
  if (model.is_nested()) {
    const auto& impl = nested(model);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        parts[0], impl.get_nested_sizes(), impl.get_nested_strides(), impl.get_storage_offsets());
  }
  const c10::Device device = parts.back().device();
  const c10::DispatchKeySet keys(key_on(device, model));
  if (model.is_sparse()) {
    auto result = at::detail::make_tensor<at::SparseTensorImpl>(keys, model.dtype());
    set_parts(coordinates(result), coordinates(model), parts);
    return result;
  }
  auto result =
      at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, model.layout(), model.dtype());
  compressed(result).set_member_tensors(parts[0], parts[1], parts[2], model.sizes());
  return result;
}

void update_container(
    const at::Tensor& owner,
    const at::Tensor& twin,
    const std::vector<at::Tensor>& parts) {
  if (owner.is_nested() || (same_tensors(parts_of(owner), parts) && same_geometry(owner, twin))) {
    return;
  }
  if (owner.is_sparse()) {
    set_parts(coordinates(owner), coordinates(twin), parts);
  } else {
    compressed(owner).set_member_tensors(parts[0], parts[1], parts[2], twin.sizes());
  }
}

} // namespace anyrig::virtual_gpu
