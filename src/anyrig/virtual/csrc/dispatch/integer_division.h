// Integer division by zero: CUDA kernels return arbitrary numbers, CPU kernels raise
// "ZeroDivisionError".
#pragma once

#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Replaces zeros in `divisors` by ones if both arguments are integers. Takes CPU tensors.
void replace_zero_divisors(const c10::IValue& dividends, c10::IValue& divisors);

} // namespace anyrig::virtual_gpu
