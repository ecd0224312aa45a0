// Operators of nested tensors whose kernel for a card is that for the CPU.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

void register_nested_elementwise();

// Whether the operator `name`, as in "add.Tensor", is made of operators on the buffers, and those
// must find them on the device: a card does more than the CPU, or draws other random numbers.
bool acts_on_nested_buffers(const std::string& name);

} // namespace anyrig::virtual_gpu
