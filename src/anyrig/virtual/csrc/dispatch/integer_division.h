// Integer division by zero: CUDA kernels return arbitrary numbers, CPU kernels raise
// "ZeroDivisionError".
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Returns whether an operator divides its first two arguments with an integer result for integers.
bool divides_integers(const c10::FunctionSchema& schema);

// Replaces zeros in `divisors` by ones if both arguments are integers. Takes CPU tensors.
void replace_zero_divisors(const c10::IValue& dividends, c10::IValue& divisors);

} // namespace anyrig::virtual_gpu
