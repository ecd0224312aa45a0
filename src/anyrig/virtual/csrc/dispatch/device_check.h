// Checks of operands that lie on several devices, with CUDA's error messages.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Raises CUDA's error unless CUDA allows this mix. `arguments` are those of one call whose tensors
// lie on more than one device.
void check_devices(
    const OperatorPlan& plan,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments);

// Raises RuntimeError unless the tensors among a convolution's arguments share dtype and device
// type.
void check_types(c10::ArrayRef<c10::IValue> arguments);

} // namespace anyrig::virtual_gpu
