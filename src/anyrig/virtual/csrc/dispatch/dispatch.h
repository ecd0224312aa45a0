// Which operators get the boxed kernel of a virtual device.
#pragma once

#include "dispatch/operator_plan.h"

namespace anyrig::virtual_gpu {

// Gives every operator that a card has a kernel for one of the virtual devices: the boxed kernel,
// or one of kernels.h. Operators that a card composes of others are left alone, as PyTorch
// composes them here too. Returns how many got the boxed kernel.
int install_operators(const OperatorTable& table);

} // namespace anyrig::virtual_gpu
