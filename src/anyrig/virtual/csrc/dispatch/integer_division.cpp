#include "dispatch/integer_division.h"

#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {
namespace {

bool is_integral(const c10::IValue& value) {
  return value.isInt() ||
      (value.isTensor() && value.toTensor().defined() &&
       c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/false));
}

} // namespace

void replace_zero_divisors(const c10::IValue& dividends, c10::IValue& divisors) {
  if (!is_integral(dividends) || !divisors.isTensor() || !is_integral(divisors)) {
    return;
  }
  const at::Tensor divisor = divisors.toTensor();
  const at::Tensor is_zero = divisor.eq(0);
  if (divisor.is_cpu() && is_zero.any().item<bool>()) {
    divisors = divisor.masked_fill(is_zero, 1);
  }
}

} // namespace anyrig::virtual_gpu
