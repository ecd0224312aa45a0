// Integers divided by zero: a card's kernels give any number, the CPU's raise "ZeroDivisionError".
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Whether the first two arguments of an operator are divided, and rounded if they are integers.
bool divides_integers(const c10::FunctionSchema& schema);

// Puts ones in the place of zeros among `divisors` if both are integers. Tensors of the CPU.
void replace_zero_divisors(const c10::IValue& dividends, c10::IValue& divisors);

} // namespace anyrig::virtual_gpu
