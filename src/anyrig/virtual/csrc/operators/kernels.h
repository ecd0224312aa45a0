// Kernels of the virtual devices that are more than their CPU kernel run on twins.
#pragma once

#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace anyrig::virtual_gpu {

// Each registers its kernels under the CUDA key and adds their names, as in "add.Tensor".
using Names = std::unordered_set<std::string>;
void register_tensor_kernels(torch::Library& library, Names& names);
void register_copy_kernels(torch::Library& library, Names& names);
void register_lazy_clones(torch::Library& library, Names& names);
void register_attention_kernels(torch::Library& library, Names& names);
void register_recurrent_kernels(torch::Library& library, Names& names);
void register_random_kernels(torch::Library& library, Names& names);
void register_random_launch_kernels(torch::Library& library, Names& names);
// Nested tensors have a key of their own, too.
void register_nested_kernels(torch::Library& library, Names& names);

// All of them; returns their names.
Names register_kernels(torch::Library& library);

// Whether this PyTorch has the operator `name`, without an overload name, and with `count`
// arguments; it refuses a kernel that takes others.
bool has_arguments(const char* name, size_t count);

// Registers one kernel and remembers its name.
template <class Kernel>
void register_kernel(torch::Library& library, Names& names, const char* name, Kernel kernel) {
  library.impl(name, kernel);
  names.insert(name);
}

} // namespace anyrig::virtual_gpu
