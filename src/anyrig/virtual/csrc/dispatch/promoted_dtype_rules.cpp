#include "dispatch/promoted_dtype_rules.h"

#include "dispatch/refusal.h"

#include <ATen/ops/result_type.h>

#include <optional>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

const std::vector<c10::ScalarType> kBoolOnly = {at::kBool};
const std::vector<c10::ScalarType> kIntegral = {
    at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};
const std::vector<c10::ScalarType> kBoolAndComplex = {
    at::kBool, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};

// Returns the promoted dtype of the first two arguments, each a tensor or a number.
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

void check_promoted_dtype(
    Arguments arguments, const char* kernel, const std::vector<c10::ScalarType>& dtypes) {
  if (const auto dtype = promoted_dtype(arguments)) {
    check_not_refused({kernel, dtypes}, *dtype, arguments);
  }
}

// div(self, other, rounding_mode). Without a rounding mode, div converts integers to floats.
void check_rounded_division(Arguments arguments) {
  if (arguments.size() < 3 || !arguments[2].isString()) {
    return;
  }
  const bool down = arguments[2].toStringRef() == "floor";
  check_promoted_dtype(arguments, down ? "div_floor_cuda" : "div_trunc_cuda", kBoolAndComplex);
}

} // namespace

const OperandRules* promoted_dtype_rules_of(const std::string& name) {
  static const std::unordered_map<std::string, OperandRules> rules = {
      {"fmod", {{}, [](Arguments a) { check_promoted_dtype(a, "fmod_cuda", kBoolOnly); }}},
      {"remainder", {{}, [](Arguments a) { check_promoted_dtype(a, "remainder_cuda", kBoolOnly); }}},
      {"pow", {{}, [](Arguments a) { check_promoted_dtype(a, "pow_cuda", kBoolOnly); }}},
      {"gcd", {{}, [](Arguments a) { check_promoted_dtype(a, "gcd_cuda", kBoolOnly); }}},
      {"lcm", {{}, [](Arguments a) { check_promoted_dtype(a, "lcm_cuda", kBoolOnly); }}},
      {"bitwise_left_shift",
       {{}, [](Arguments a) { check_promoted_dtype(a, "lshift_cuda", kBoolOnly); }}},
      {"bitwise_right_shift",
       {{}, [](Arguments a) { check_promoted_dtype(a, "rshift_cuda", kBoolOnly); }}},
      {"hypot", {{}, [](Arguments a) { check_promoted_dtype(a, "hypot_cuda", kIntegral); }}},
      {"nextafter", {{}, [](Arguments a) { check_promoted_dtype(a, "nextafter_cuda", kIntegral); }}},
      {"logaddexp", {{}, [](Arguments a) { check_promoted_dtype(a, "logaddexp_cuda", kIntegral); }}},
      {"logaddexp2",
       {{}, [](Arguments a) { check_promoted_dtype(a, "logaddexp2_cuda", kIntegral); }}},
      {"floor_divide",
       {{}, [](Arguments a) { check_promoted_dtype(a, "div_floor_cuda", kBoolAndComplex); }}},
      {"div", {{}, check_rounded_division}},
  };
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : &found->second;
}

} // namespace anyrig::virtual_gpu
