// Containers: tensors without memory of their own, which hold others. Sparse tensors hold indices
// and values, a nested tensor holds the buffer of its components.
//
// The twin of a container is a container over the twins of its parts; a container that a kernel
// returned becomes one of the device when its parts do.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {

// Dispatch keys of containers, for the boxed kernel to be registered under.
struct ContainerKeys {
  const char* name; // as in native_functions.yaml
  c10::DispatchKey device;
  c10::DispatchKey host;
};
const std::vector<ContainerKeys>& container_keys();

bool is_container(const at::Tensor& tensor);

// COO: indices, values. Compressed: compressed and plain indices, values. Nested: the buffer.
std::vector<at::Tensor> parts_of(const at::Tensor& container);

// A container like `model`, on the device of `parts`, which must be the current one.
at::Tensor contain(const at::Tensor& model, const std::vector<at::Tensor>& parts);

// After a kernel wrote to the twin of `owner`: takes over its geometry and these parts.
void follow_container(
    const at::Tensor& owner, const at::Tensor& twin, const std::vector<at::Tensor>& parts);

} // namespace anyrig::virtual_gpu
