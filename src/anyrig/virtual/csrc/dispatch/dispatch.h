// Registration of the operators of virtual devices.
#pragma once

#include "dispatch/operator_plan.h"

namespace anyrig::virtual_gpu {

// Registers a kernel for every operator that has a CUDA kernel: the boxed kernel (call.h) or one of
// kernels.h. Operators that CUDA composes of others get none, since PyTorch composes them here too.
// Returns the number of operators that got the boxed kernel.
int install_operators(const OperatorTable& table);

} // namespace anyrig::virtual_gpu
