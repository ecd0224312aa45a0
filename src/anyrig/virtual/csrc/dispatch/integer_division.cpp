#include "dispatch/integer_division.h"

#include <ATen/core/Tensor.h>

#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

bool is_integral(const c10::IValue& value) {
  return value.isInt() ||
      (value.isTensor() && value.toTensor().defined() &&
       c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/false));
}

} // namespace

bool divides_integers(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> names = {
      "aten::floor_divide", "aten::floor_divide_", "aten::remainder", "aten::remainder_",
      "aten::fmod", "aten::fmod_"};
  // Without a rounding mode, div divides integers as floats.
  static const std::unordered_set<std::string> rounding = {"Tensor_mode", "out_mode"};
  const bool is_div = schema.name() == "aten::div" || schema.name() == "aten::div_";
  return names.count(schema.name()) > 0 || (is_div && rounding.count(schema.overload_name()) > 0);
}

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
