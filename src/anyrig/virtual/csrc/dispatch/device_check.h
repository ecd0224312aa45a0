// Refuses operands on several devices where a card would, with the text it would give.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// `arguments` are those of one call, on more than one device. Returns if CUDA allows the mix.
void check_devices(
    const OperatorPlan& plan,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments);

// Raises unless the tensors of a convolution, its `arguments`, are of one dtype and kind of device.
void check_types(c10::ArrayRef<c10::IValue> arguments);

} // namespace anyrig::virtual_gpu
