// Containers: tensors that have no memory of their own but hold other tensors. A sparse tensor
// holds indices and values; a nested tensor holds the buffer of its components.
//
// The twin of a container is a container of the twins of its parts. A container that a kernel
// returns becomes a virtual tensor when its parts do.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {

// The dispatch keys of one kind of container, on the device and on the host.
struct ContainerKeys {
  const char* name; // as in native_functions.yaml
  c10::DispatchKey device;
  c10::DispatchKey host;
};
const std::vector<ContainerKeys>& container_keys();

bool is_container(const at::Tensor& tensor);

// Returns the parts in a fixed order. COO: indices, values. Compressed: compressed indices, plain
// indices, values. Nested: the buffer.
std::vector<at::Tensor> parts_of(const at::Tensor& container);

// Returns a container like `model` that holds `parts`. Their device must be the current device.
at::Tensor contain(const at::Tensor& model, const std::vector<at::Tensor>& parts);

// Copies the geometry of `twin` to `owner` and gives it these parts, after a kernel wrote to
// `twin`.
void update_container(
    const at::Tensor& owner,
    const at::Tensor& twin,
    const std::vector<at::Tensor>& parts);

} // namespace anyrig::virtual_gpu
