// One call of an operator on a virtual device.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace anyrig::virtual_gpu {

// Replaces the arguments on `stack` by twins, runs the kernel that `host_key` has for the operator
// (or, without data, its Meta kernel), and leaves results of the device in their place. Raises
// CUDA's errors for operands that a card would refuse.
void run_on_twins(
    const OperatorPlan& plan,
    const c10::OperatorHandle& op,
    c10::DispatchKey host_key,
    torch::jit::Stack* stack);

} // namespace anyrig::virtual_gpu
