// Host kernels for operators that PyTorch implements for CUDA but not for the CPU, or whose CPU
// kernels return other results. They run on twins, as CPU kernels do, and know nothing of virtual
// devices.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>
#include <unordered_map>

namespace anyrig::virtual_gpu {

// Keyed by name and overload, such as "mm.dtype".
using HostKernels = std::unordered_map<std::string, c10::KernelFunction>;
const HostKernels& cuda_only_kernels();
// The kernels of sparse tensors, to be registered under `key`.
const HostKernels& cuda_only_kernels_of(c10::DispatchKey key);

void add_products(HostKernels& kernels);
void add_normalizations(HostKernels& kernels);
void add_convolutions(HostKernels& kernels);
void add_dropouts(HostKernels& kernels);
void add_drivers(HostKernels& kernels);
void add_embedding_bags(HostKernels& kernels);
void add_grouped_products(HostKernels& kernels);
void add_cudnn(HostKernels& kernels);
void add_narrow_products(HostKernels& kernels);
void add_lists(HostKernels& kernels);
void add_compressed_products(HostKernels& kernels);

template <class Function>
void add_kernel(HostKernels& kernels, const char* name, Function* function) {
  kernels.emplace(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

} // namespace anyrig::virtual_gpu
