// Operators that PyTorch has for CUDA and not for the CPU, or that return more or less there, written
// for the host. They run on twins, as the CPU's kernels do, and so need to know nothing of virtual
// devices.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>
#include <unordered_map>

namespace anyrig::virtual_gpu {

// By name and overload, as in "mm.dtype".
using HostKernels = std::unordered_map<std::string, c10::KernelFunction>;
const HostKernels& cuda_only_kernels();
// Those of sparse tensors, registered under `key`.
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
