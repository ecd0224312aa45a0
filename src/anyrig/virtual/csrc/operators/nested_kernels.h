// The choice of the code that runs an operator on nested tensors of layout strided.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

enum class NestedKernel {
  OfHost,      // PyTorch's CPU kernel on virtual tensors: it calls operators on their parts
  OnTwins,     // PyTorch's CPU kernel on twins: CUDA has a kernel of its own
  WrittenHere, // a kernel of this library (register_nested_kernels)
};

// Looks up an operator by its name and overload.
NestedKernel nested_kernel_of(const std::string& full_name);

} // namespace anyrig::virtual_gpu
