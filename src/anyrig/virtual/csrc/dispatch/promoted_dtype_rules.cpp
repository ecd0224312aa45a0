#include "dispatch/promoted_dtype_rules.h"

#include "dispatch/refusal.h"

#include <ATen/ops/result_type.h>

#include <optional>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

const std::vector<c10::ScalarType> kTruths = {at::kBool};
const std::vector<c10::ScalarType> kWhole = {
    at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};
const std::vector<c10::ScalarType> kTruthsAndComplex = {
    at::kBool, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};

// Of the first two arguments, tensors or numbers.
std::optional<c10::ScalarType> promoted_dtype(Arguments arguments) {
  const auto& first = arguments[0];
  const auto& second = arguments[1];
  if (first.isTensor() && second.isTensor()) {
    return at::result_type(first.toTensor(), second.toTensor());
  }
  if (first.isTensor() && second.isScalar()) {
    return at::result_type(first.toTensor(), second.toScalar());
  }
  if (first.isScalar() && second.isTensor()) {
    return at::result_type(first.toScalar(), second.toTensor());
  }
  return std::nullopt;
}

void refuse_together(
    Arguments arguments, const char* kernel, const std::vector<c10::ScalarType>& dtypes) {
  if (const auto dtype = promoted_dtype(arguments)) {
    check_not_refused({kernel, dtypes}, *dtype, arguments);
  }
}

// div(self, other, rounding_mode), which without rounding makes floats of whole numbers.
void check_rounded_division(Arguments arguments) {
  if (arguments.size() < 3 || !arguments[2].isString()) {
    return;
  }
  const bool down = arguments[2].toStringRef() == "floor";
  refuse_together(arguments, down ? "div_floor_cuda" : "div_trunc_cuda", kTruthsAndComplex);
}

} // namespace

const OperandRules* promoted_dtype_rules_of(const std::string& name) {
  static const std::unordered_map<std::string, OperandRules> rules = {
      {"fmod", {{}, [](Arguments a) { refuse_together(a, "fmod_cuda", kTruths); }}},
      {"remainder", {{}, [](Arguments a) { refuse_together(a, "remainder_cuda", kTruths); }}},
      {"pow", {{}, [](Arguments a) { refuse_together(a, "pow_cuda", kTruths); }}},
      {"gcd", {{}, [](Arguments a) { refuse_together(a, "gcd_cuda", kTruths); }}},
      {"lcm", {{}, [](Arguments a) { refuse_together(a, "lcm_cuda", kTruths); }}},
      {"bitwise_left_shift", {{}, [](Arguments a) { refuse_together(a, "lshift_cuda", kTruths); }}},
      {"bitwise_right_shift",
       {{}, [](Arguments a) { refuse_together(a, "rshift_cuda", kTruths); }}},
      {"hypot", {{}, [](Arguments a) { refuse_together(a, "hypot_cuda", kWhole); }}},
      {"nextafter", {{}, [](Arguments a) { refuse_together(a, "nextafter_cuda", kWhole); }}},
      {"logaddexp", {{}, [](Arguments a) { refuse_together(a, "logaddexp_cuda", kWhole); }}},
      {"logaddexp2", {{}, [](Arguments a) { refuse_together(a, "logaddexp2_cuda", kWhole); }}},
      {"floor_divide",
       {{}, [](Arguments a) { refuse_together(a, "div_floor_cuda", kTruthsAndComplex); }}},
      {"div", {{}, check_rounded_division}},
  };
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : &found->second;
}

} // namespace anyrig::virtual_gpu
