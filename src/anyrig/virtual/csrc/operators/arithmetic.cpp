// Operators that compute number by number. `refused` concerns the first of two operands: if it has
// one of these dtypes, CUDA refuses every dtype of the second.

#include "dispatch/operand_checks.h"
#include "dispatch/operator_record.h"

#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {
namespace {

// clamp_min(self, min). A number `min` is checked elsewhere.
bool takes_two_tensors(Arguments arguments) {
  return arguments[1].isTensor();
}

// clamp(self, min, max)
void check_has_bound(Arguments arguments) {
  TORCH_CHECK(
      !arguments[1].isNone() || !arguments[2].isNone(),
      "torch.clamp: At least one of 'min' or 'max' must not be None");
}

bool always_divides_integers(Arguments /*arguments*/) {
  return true;
}

// div(self, other, *, rounding_mode). Without a rounding mode, div converts integers to floats.
bool has_rounding_mode(Arguments arguments) {
  return arguments.size() > 2 && arguments[2].isString();
}

void check_rounded_division(Arguments arguments) {
  if (has_rounding_mode(arguments)) {
    const bool down = arguments[2].toStringRef() == "floor";
    check_promoted(down ? "div_floor_cuda" : "div_trunc_cuda", kBoolAndComplexes, arguments);
  }
}

OperatorRecords arithmetic_records() {
  using enum c10::ScalarType;
  return {
      {{"floor"},
       {.kernel = "floor_cuda",
        .refused = kBool,
        .dtype_rules = refuse_complex(
            "floor is not supported for complex inputs", RefusalError::NotImplemented)}},
      {{"ceil"},
       {.kernel = "ceil_cuda",
        .refused = kBool,
        .dtype_rules = refuse_complex(
            "ceil is not supported for complex inputs", RefusalError::NotImplemented)}},
      {{"trunc"},
       {.kernel = "trunc_cuda",
        .refused = kBool,
        .dtype_rules = refuse_complex(
            "trunc is not supported for complex inputs", RefusalError::NotImplemented)}},
      {{"round"}, {.kernel = "round_cuda", .refused = kBoolAndComplexes}},
      {{"frac"}, {.kernel = "frac_cuda", .refused = kAllButFloats}},
      {{"sign"},
       {.dtype_rules = refuse_complex(
            "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use "
            "torch.sgn instead.",
            RefusalError::NotImplemented)}},
      {{"signbit"},
       {.dtype_rules = refuse_complex(
            "signbit is not implemented for complex tensors.", RefusalError::NotImplemented)}},
      {{"heaviside"},
       {.dtype_rules = refuse_complex("heaviside is not yet implemented for complex tensors.")}},
      {{"abs"}, {.widened = kBool}},
      {{"angle"}, {.kernel = "angle_cuda", .refused = kHalves, .widened = kComplexHalf}},
      {{"complex", "polar"},
       {.dtype_rules = {same_dtype(
            1, 0,
            "Expected object of scalar type {2} but got scalar type {1} for second argument")}}},
      {{"erf"}, {.kernel = "erf_cuda", .refused = kComplexes}},
      {{"erfc"}, {.kernel = "erfc_cuda", .refused = kComplexes}},
      {{"erfinv"}, {.kernel = "erfinv_cuda", .refused = kComplexes}},
      {{"i0"}, {.kernel = "i0_cuda", .refused = kComplexes}},
      {{"logit"}, {.kernel = "logit_cuda", .refused = kComplexes}},
      {{"lgamma"}, {.kernel = "lgamma_cuda", .refused = kComplexes}},
      {{"digamma"}, {.kernel = "digamma_cuda", .refused = kComplexes}},
      {{"acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan",
        "tanh", "exp", "log", "sqrt", "rsqrt", "sgn"},
       {.widened = kComplexHalf}},
      {{"reciprocal"}, {.kernel = "reciprocal_cuda", .refused = kComplexHalf}},
      {{"bitwise_not"}, {.kernel = "bitwise_not_cuda", .refused = kInexact}},
      {{"bitwise_and"}, {.kernel = "bitwise_and_cuda", .refused = kInexact}},
      {{"bitwise_or"}, {.kernel = "bitwise_or_cuda", .refused = kInexact}},
      {{"bitwise_xor"}, {.kernel = "bitwise_xor_cuda", .refused = kInexact}},
      {{"__lshift__"}, {.kernel = "lshift_cuda", .refused = kInexact}},
      {{"__rshift__"}, {.kernel = "rshift_cuda", .refused = kInexact}},
      {{"bitwise_left_shift"},
       {.kernel = "lshift_cuda", .refused = kInexact, .refused_promoted = kBool}},
      {{"bitwise_right_shift"},
       {.kernel = "rshift_cuda", .refused = kInexact, .refused_promoted = kBool}},
      {{"add", "add_"}, {.widened_coordinates = {Half}}},
      {{"div"},
       {.check_arguments = check_rounded_division,
        .widened = kComplexHalf,
        .divides_integers = has_rounding_mode}},
      {{"div_"}, {.divides_integers = has_rounding_mode}},
      {{"floor_divide"},
       {.kernel = "div_floor_cuda",
        .refused_promoted = kBoolAndComplexes,
        .divides_integers = always_divides_integers}},
      {{"floor_divide_", "fmod_", "remainder_"}, {.divides_integers = always_divides_integers}},
      {{"fmod"},
       {.kernel = "fmod_cuda",
        .refused = kComplexes,
        .refused_promoted = kBool,
        .divides_integers = always_divides_integers}},
      {{"remainder"},
       {.kernel = "remainder_cuda",
        .refused = kComplexes,
        .refused_promoted = kBool,
        .divides_integers = always_divides_integers}},
      {{"pow"}, {.kernel = "pow_cuda", .refused_promoted = kBool, .widened = kComplexHalf}},
      {{"lerp"}, {.kernel = "lerp_cuda", .refused = kIntegral, .widened = kComplexHalf}},
      {{"addcmul", "addcmul_"}, {.device_check = DeviceCheck::Addcmul}},
      {{"atan2"}, {.kernel = "atan2_cuda", .refused = kComplexes}},
      {{"hypot"}, {.kernel = "hypot_cuda", .refused = kComplexes, .refused_promoted = kIntegral}},
      {{"nextafter"},
       {.kernel = "nextafter_cuda", .refused = kComplexes, .refused_promoted = kIntegral}},
      {{"gcd"}, {.kernel = "gcd_cuda", .refused = kInexact, .refused_promoted = kBool}},
      {{"lcm"}, {.kernel = "lcm_cuda", .refused = kInexact, .refused_promoted = kBool}},
      {{"logaddexp"},
       {.kernel = "logaddexp_cuda", .refused_promoted = kIntegral, .widened = kComplexHalf}},
      {{"logaddexp2"},
       {.kernel = "logaddexp2_cuda", .refused = kComplexes, .refused_promoted = kIntegral}},
      {{"xlogy"}, {.kernel = "xlogy_cuda", .refused = kComplexes}},
      {{"copysign"}, {.kernel = "copysign_cuda", .refused = kComplexes}},
      {{"igamma"}, {.kernel = "igamma_cuda", .refused = kHalves}},
      {{"igammac"}, {.kernel = "igammac_cuda", .refused = kHalves}},
      {{"maximum"},
       {.dtype_rules = refuse_complex("maximum not implemented for complex tensors.")}},
      {{"minimum"},
       {.dtype_rules = refuse_complex("minimum not implemented for complex tensors.")}},
      {{"fmax"}, {.dtype_rules = refuse_complex("fmax not implemented for complex tensors.")}},
      {{"fmin"}, {.dtype_rules = refuse_complex("fmin not implemented for complex tensors.")}},
      {{"clamp"},
       {.dtype_rules = refuse_complex(
            "clamp is not supported for complex types", RefusalError::NotImplemented),
        .check_arguments = check_has_bound}},
      {{"clamp_min"},
       {.kernel = "max_elementwise_cuda",
        .refused = kComplexes,
        .reaches_kernel = takes_two_tensors,
        .dtype_rules = refuse_complex(
            "clamp is not supported for complex types", RefusalError::NotImplemented)}},
      {{"clamp_max"},
       {.kernel = "min_elementwise_cuda",
        .refused = kComplexes,
        .reaches_kernel = takes_two_tensors,
        .dtype_rules = refuse_complex(
            "clamp is not supported for complex types", RefusalError::NotImplemented)}},
      {{"lt", "gt", "le", "ge"}, {.kernel = "compare_cuda", .refused = kComplexes}},
  };
}

const DeclaredRecords kArithmeticRecords(arithmetic_records());

} // namespace

} // namespace anyrig::virtual_gpu
