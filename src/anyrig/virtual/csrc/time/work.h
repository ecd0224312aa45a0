// How much arithmetic an operator does.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

// Multiplications and additions of a call, for the operators that are dense in them; 0 for others.
// Formulas as in torch.utils.flop_counter.
//
// `operands` are the first tensors of the call, `convolved_numbers` the size of a convolution's
// result.
double flops_of(
    Work work,
    c10::ArrayRef<const at::Tensor*> operands,
    double convolved_numbers);

} // namespace anyrig::virtual_gpu
