// Reductions, scans and order.

#include "dispatch/operand_checks.h"
#include "dispatch/operator_record.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

namespace anyrig::virtual_gpu {
namespace {

// median(self). Another kernel computes the median along a dimension.
bool reduces_all_dimensions(Arguments arguments) {
  return arguments.size() == 1;
}

// cumsum(self, dim, *, dtype). With `dtype` given, the dtype of `self` does not matter.
bool keeps_dtype(Arguments arguments) {
  return arguments[2].isNone();
}

bool is_of_floats(Arguments arguments) {
  return at::isFloatingType(arguments[0].toTensor().scalar_type());
}

bool has_weights(Arguments arguments) {
  return arguments[1].isTensor() && arguments[1].toTensor().defined();
}

// median(self) is deterministic; median(self, dim) also returns indices and is not.
bool returns_indices(Arguments arguments) {
  return arguments.size() > 1;
}

// bucketize(self, boundaries)
void check_boundaries(Arguments arguments) {
  const int64_t dimensions = arguments[1].toTensor().dim();
  TORCH_CHECK(
      dimensions == 1, "boundaries tensor must be 1 dimension, but got dim(", dimensions, ")");
}

// Like CUDA's kernel, does not compare a tensor with itself: NaN equals NaN then.
bool equal(const at::Tensor& self, const at::Tensor& other) {
  const bool are_one = self.const_data_ptr() == other.const_data_ptr() &&
      self.scalar_type() == other.scalar_type() && self.sizes() == other.sizes() &&
      self.strides() == other.strides();
  return are_one || at::equal(self, other);
}

OperatorRecords reduction_records() {
  return {
      {{"equal"}, {.host_kernels = {host_kernel(&equal)}}},
      {{"amax"}, {.kernel = "max_values_cuda", .refused = kComplexes}},
      {{"amin"}, {.kernel = "min_values_cuda", .refused = kComplexes}},
      {{"aminmax"}, {.kernel = "aminmax_cuda", .refused = kComplexes}},
      {{"max"},
       {.kernel = "max_all_cuda",
        .refused = kComplexes,
        .reaches_kernel = reduces_all_dimensions,
        .dtype_rules = refuse_complex("max(): does not support complex input")}},
      {{"min"},
       {.kernel = "min_all_cuda",
        .refused = kComplexes,
        .reaches_kernel = reduces_all_dimensions,
        .dtype_rules = refuse_complex("min(): does not support complex input")}},
      {{"argmax"},
       {.dtype_rules =
            {dtype_in(0, kAllButBool, "argmax(): does not support bool input"),
             dtype_in(0, kReal, "argmax(): does not support complex input")}}},
      {{"argmin"},
       {.dtype_rules =
            {dtype_in(0, kAllButBool, "argmin(): does not support bool input"),
             dtype_in(0, kReal, "argmin(): does not support complex input")}}},
      {{"sum", "nansum", "mean", "prod"}, {.widened = kComplexHalf}},
      {{"var", "std", "var_mean", "std_mean"},
       {.dtype_rules = {dtype_in(
            0, kInexact, "std and var only support floating point and complex dtypes")}}},
      {{"trace"}, {.widened = kBool}},
      {{"_cdist_forward"},
       {.kernel = "cdist_cuda",
        .refused = kHalves,
        .dtype_rules =
            {dtype_in(0, kFloats, "cdist only supports floating-point dtypes, X1 got: {1}"),
             same_dtype(1, 0, kFound)}}},
      {{"histc"},
       {.kernel = "histc",
        .refused = kHalves | kBoolAndComplexes,
        .nondeterministic = "_histc_cuda with floating point input",
        .is_nondeterministic = is_of_floats,
        .widened = kWholeNumbers}},
      {{"bincount"}, {.nondeterministic = "_bincount_cuda", .is_nondeterministic = has_weights}},
      {{"segment_reduce"}, {.kernel = "_segment_reduce_cuda", .refused = kAllButFloats}},
      {{"cumsum"},
       {.kernel = "cumsum_cuda", .refused = kComplexHalf, .reaches_kernel = keeps_dtype}},
      {{"cumprod"},
       {.kernel = "cumprod_cuda", .refused = kComplexHalf, .reaches_kernel = keeps_dtype}},
      {{"_logcumsumexp"},
       {.kernel = "logcumsumexp_out_cuda",
        .refused = kIntegral | kComplexHalf,
        .check_arguments = check_dimension,
        .missing_meta = MissingMeta{0}}},
      {{"_cummax_helper"},
       {.kernel = "cummax_cuda", .refused = kComplexes, .missing_meta = MissingMeta{}}},
      {{"_cummin_helper"},
       {.kernel = "cummin_cuda", .refused = kComplexes, .missing_meta = MissingMeta{}}},
      {{"median", "nanmedian"},
       {.kernel = "median",
        .refused = kBoolAndComplexes,
        .reaches_kernel = reduces_all_dimensions,
        .dtype_rules = refuse_complex(
            "\"median_out_impl\" not implemented for '{1}'", RefusalError::NotImplemented),
        .nondeterministic = "median CUDA with indices output",
        .is_nondeterministic = returns_indices}},
      {{"mode"}, {.kernel = "mode_cuda", .refused = kComplexes, .composed_overload = "values"}},
      {{"kthvalue"}, {.kernel = "kthvalue_cuda", .refused = kBoolAndComplexes}},
      {{"topk"}, {.kernel = "topk_out_cuda", .refused = kBoolAndComplexes}},
      {{"sort"},
       {.dtype_rules = refuse_complex("Sort currently does not support complex dtypes on CUDA.")}},
      {{"searchsorted"}, {.kernel = "searchsorted_out_cuda", .refused = kBoolAndComplexes}},
      {{"bucketize"},
       {.kernel = "searchsorted_out_cuda",
        .refused = kBoolAndComplexes,
        .check_arguments = check_boundaries}},
  };
}

const DeclaredRecords kReductionRecords(reduction_records());

} // namespace

} // namespace anyrig::virtual_gpu
