// Reductions, scans and order.

#include "dispatch/operand_checks.h"
#include "dispatch/operator_record.h"
#include "device/override.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

namespace anyrig::virtual_gpu {
namespace {

// median(self). Another kernel computes the median along a dimension.
bool reduces_all_dimensions(Arguments arguments) {
  return arguments.size() == 1;
}

// aminmax(self, *, dim, keepdim)
bool has_no_dimension(Arguments arguments) {
  return arguments[1].isNone();
}

// mean(self, *, dtype) or mean(self, dim, keepdim, *, dtype), of complex halves. Another `dtype` is
// that of the kernel.
bool averages_in_half(Arguments arguments) {
  const auto& dtype = arguments[arguments.size() <= 3 ? 1 : 3];
  return dtype.isNone() || dtype.toScalarType() == at::kComplexHalf;
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

constexpr DtypeSet kAllButHalf =
    kIntegral | kComplexes | DtypeSet{at::kBFloat16, at::kFloat, at::kDouble};

// Until PyTorch 2.15, sort and topk check the dtype before a device's kernel runs.
#if ANYRIG_TORCH_FROM(15)
std::vector<DtypeRule> sort_rules() {
  return refuse_complex(
      "Sort currently does not support complex dtypes on CUDA.", RefusalError::Type);
}

OperatorRecord topk_record() {
  return {.kernel = "topk_out_cuda", .refused = kBoolAndComplexes};
}
#else
std::vector<DtypeRule> sort_rules() {
  return refuse_complex(" Sort does not support complex dtypes on CPU");
}

OperatorRecord topk_record() {
  return {
      .dtype_rules = {
          dtype_in(0, kReal, " topk does not support complex dtypes on CPU"),
          dtype_in(0, kAllButBool, "topk does not support bool dtypes on CPU")}};
}
#endif

OperatorRecords reduction_records() {
  return {
      {{"equal"}, {.host_kernels = {host_kernel(&equal)}, .cpu_kernel_agrees = true}},
      {{"amax"}, {.kernel = "max_values_cuda", .refused = kComplexes}},
      {{"amin"}, {.kernel = "min_values_cuda", .refused = kComplexes}},
      {{"aminmax"},
       {.kernel = "aminmax_all_cuda",
        .refused = kComplexes,
        .reaches_kernel = has_no_dimension,
        .dtype_rules = refuse_complex(
            "\"aminmax_cuda\" not implemented for '{1}'", RefusalError::NotImplemented)}},
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
      {{"sum", "nansum", "prod"}, {.widened = kComplexHalf}},
      {{"mean"},
       {.kernel = "mean_cuda", .refused = kComplexHalf, .reaches_kernel = averages_in_half}},
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
        .refused = DtypeSet{at::kBFloat16} | kBoolAndComplexes,
        .dtype_rules = {dtype_in(0, kAllButHalf, "HalfTensor is not supported")},
        .nondeterministic = "_histc_cuda with floating point input",
        .is_nondeterministic = is_of_floats,
        .widened = kWholeNumbers}},
      {{"bincount"}, {.nondeterministic = "_bincount_cuda", .is_nondeterministic = has_weights}},
      {{"segment_reduce"}, {.kernel = "segment_reduce_cuda", .refused = kAllButFloats}},
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
       {.kernel = "median_out_impl",
        .refused = kBoolAndComplexes,
        .reaches_kernel = returns_indices,
        .dtype_rules = sort_rules(),
        .nondeterministic = "median CUDA with indices output",
        .is_nondeterministic = returns_indices,
        .widened = kBool}},
      {{"mode"}, {.kernel = "cuda_mode", .refused = kComplexes, .composed_overload = "values"}},
      {{"kthvalue"}, {.kernel = "kthvalue_cuda", .refused = kBoolAndComplexes}},
      {{"topk"}, topk_record()},
      {{"sort"}, {.dtype_rules = sort_rules()}},
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
