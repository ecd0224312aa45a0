// Which code runs an operator on nested tensors of layout strided.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

enum class NestedKernel {
  OfHost,      // PyTorch's for the CPU, on tensors of the device: it is made of operators on the parts
  OnTwins,     // PyTorch's for the CPU, on twins: a card has a kernel of its own
  WrittenHere, // registered with the nested kernels
};

// By the operator's name and overload.
NestedKernel nested_kernel_of(const std::string& full_name);

} // namespace anyrig::virtual_gpu
