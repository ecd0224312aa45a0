// One call of an operator on a virtual device.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace anyrig::virtual_gpu {

// Replaces the arguments on `stack` by their twins (twin.h), runs the operator's kernel for
// `host_key` (in ShapeOnly its Meta kernel), and leaves the results on `stack` as virtual tensors.
// Raises CUDA's error for operands that a GPU would refuse.
void run_on_twins(
    const OperatorPlan& plan,
    const c10::OperatorHandle& op,
    c10::DispatchKey host_key,
    torch::jit::Stack* stack);

} // namespace anyrig::virtual_gpu
