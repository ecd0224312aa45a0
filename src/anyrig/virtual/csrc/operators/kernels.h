// Kernels of virtual devices other than CPU kernels that run on twins.
#pragma once

#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace anyrig::virtual_gpu {

// Each function registers kernels under the CUDA key and adds their names, such as "add.Tensor".
using Names = std::unordered_set<std::string>;
void register_tensor_kernels(torch::Library& library, Names& names);
void register_copy_kernels(torch::Library& library, Names& names);
void register_lazy_clones(torch::Library& library, Names& names);
void register_attention_kernels(torch::Library& library, Names& names);
void register_recurrent_kernels(torch::Library& library, Names& names);
void register_recurrent_layers(torch::Library& library, Names& names);
void register_random_kernels(torch::Library& library, Names& names);
void register_random_launch_kernels(torch::Library& library, Names& names);
// Also registers kernels under the dispatch key of nested tensors.
void register_nested_kernels(torch::Library& library, Names& names);

// Registers all of the above and returns their names.
Names register_kernels(torch::Library& library);

// Returns whether this PyTorch has operator `name`, without overload name, and with `count`
// arguments; registering a kernel with another signature raises.
bool has_arguments(const char* name, size_t count);

// Registers one kernel and remembers its name.
template <class Kernel>
void register_kernel(torch::Library& library, Names& names, const char* name, Kernel kernel) {
  library.impl(name, kernel);
  names.insert(name);
}

} // namespace anyrig::virtual_gpu
