#include "dispatch/refusal.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// scatter_reduce(self, dim, index, src, reduce). Another kernel computes sums.
bool is_not_sum(Arguments arguments) {
  return arguments[4].toStringRef() != "sum";
}

// median(self). Another kernel computes the median along a dimension.
bool reduces_all_dimensions(Arguments arguments) {
  return arguments.size() == 1;
}

// clamp_min(self, min). A number `min` is checked elsewhere.
bool takes_two_tensors(Arguments arguments) {
  return arguments[1].isTensor();
}

// cumsum(self, dim, *, dtype). With `dtype` given, the dtype of `self` does not matter.
bool keeps_dtype(Arguments arguments) {
  return arguments[2].isNone();
}

} // namespace

const Refusal* refusal_of(const std::string& name) {
  using enum c10::ScalarType;
  static const std::vector<c10::ScalarType> kIntegers = {Bool, Byte, Char, Short, Int, Long};
  // cuBLAS multiplies integers and 8-bit floats only in operators of their own.
  static const std::vector<c10::ScalarType> kNotMultiplied = {
      Bool, Byte, Char, Short, Int, Long,
      Float8_e4m3fn, Float8_e5m2, Float8_e4m3fnuz, Float8_e5m2fnuz};
  static const std::vector<c10::ScalarType> kNarrow = {Half, BFloat16};
  static const std::vector<c10::ScalarType> kNotWide = {
      Half, BFloat16, Bool, Byte, Char, Short, Int, Long};
  static const std::vector<c10::ScalarType> kComplex = {ComplexHalf, ComplexFloat, ComplexDouble};
  static const std::vector<c10::ScalarType> kNotReal = {
      Bool, ComplexHalf, ComplexFloat, ComplexDouble};
  static const std::vector<c10::ScalarType> kNotFloat = {
      Bool, Byte, Char, Short, Int, Long, ComplexHalf, ComplexFloat, ComplexDouble};
  static const std::vector<c10::ScalarType> kInexact = {
      Half, BFloat16, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble};
  static const std::unordered_map<std::string, Refusal> refusals = {
      {"mm", {"addmm_cuda", kNotMultiplied}},
      {"addmm", {"addmm_cuda", kNotMultiplied}},
      {"addmm_", {"addmm_cuda", kNotMultiplied}},
      {"addbmm", {"addmm_cuda", kNotMultiplied}},
      {"addbmm_", {"addmm_cuda", kNotMultiplied}},
      {"bmm", {"baddbmm_cuda", kNotMultiplied}},
      {"baddbmm", {"baddbmm_cuda", kNotMultiplied}},
      {"baddbmm_", {"baddbmm_cuda", kNotMultiplied}},
      {"addmv", {"addmv_impl_cuda", kNotMultiplied}},
      {"addmv_", {"addmv_impl_cuda", kNotMultiplied}},
      {"dot", {"dot", kNotMultiplied}},
      {"vdot", {"dot", kNotMultiplied}},
      {"convolution", {"slow_conv2d_cuda", kIntegers}},
      {"max_pool2d_with_indices", {"max_pool2d_with_indices_out_cuda_frame", kNotFloat}},
      {"max_pool3d_with_indices", {"max_pool3d_with_indices_out_frame", kNotFloat}},
      {"avg_pool2d", {"avg_pool2d_out_cuda_frame", kNotFloat}},
      {"avg_pool3d", {"avg_pool3d_out_cuda", kNotFloat}},
      {"upsample_bilinear2d", {"upsample_bilinear2d_out_frame", kNotFloat}},
      {"upsample_bicubic2d", {"upsample_bicubic2d_out_frame", kNotFloat}},
      {"_upsample_bilinear2d_aa", {"upsample_bilinear2d_out_frame", {Byte}}},
      {"native_dropout_backward", {"masked_scale", kIntegers}},
      {"_softmax", {"host_softmax", kNotFloat}},
      {"_log_softmax", {"host_softmax", kNotFloat}},
      {"mse_loss", {"mse_cuda", kNotFloat}},
      {"smooth_l1_loss", {"smooth_l1_cuda", kNotFloat}},
      {"huber_loss", {"huber_cuda", kNotFloat}},
      {"gelu", {"GeluCUDAKernelImpl", kNotFloat}},
      {"silu", {"silu_cuda", kIntegers}},
      {"elu", {"elu_cuda", kNotFloat}},
      {"leaky_relu", {"leaky_relu_cuda", kNotFloat}},
      {"softplus", {"softplus_cuda", kNotFloat}},
      {"hardswish", {"hardswish_cuda", kNotFloat}},
      {"hardshrink", {"hardshrink_cuda", kNotFloat}},
      {"hardsigmoid", {"hardsigmoid_cuda", kNotFloat}},
      {"softshrink", {"softshrink_cuda", kNotFloat}},
      {"mish", {"mish_cuda", kNotFloat}},
      {"glu", {"glu_cuda", kNotFloat}},
      {"log_sigmoid_forward", {"log_sigmoid_forward_cuda", kNotFloat}},
      {"threshold", {"threshold_cuda", kNotReal}},
      {"_prelu_kernel", {"prelu_cuda", kNotFloat}},
      {"rrelu_with_noise", {"rrelu_with_noise_out_cuda", kNotFloat}},
      {"native_dropout", {"fused_dropout", kNotFloat}},
      {"binary_cross_entropy", {"binary_cross_entropy", kNotFloat}},
      {"multi_margin_loss", {"multi_margin_loss_cuda", kNotFloat}},
      {"multilabel_margin_loss_forward", {"multilabel_margin_loss_forward_kernel", kNotFloat}},
      {"native_group_norm", {"GroupNormKernelImpl", kNotFloat}},
      {"native_layer_norm", {"LayerNormKernelImpl", kNotFloat}},
      {"native_batch_norm", {"batch_norm_stats_cuda", kNotFloat}},
      {"_adaptive_avg_pool2d", {"adaptive_avg_pool2d_cuda", kNotFloat}},
      {"_adaptive_avg_pool3d", {"adaptive_avg_pool3d_cuda", kNotFloat}},
      {"adaptive_max_pool3d", {"adaptive_max_pool3d_cuda", kNotFloat}},
      {"max_unpool2d", {"max_unpooling2d_forward_kernel", kNotFloat}},
      {"max_unpool3d", {"max_unpooling3d_forward_kernel", kNotFloat}},
      {"adaptive_max_pool2d", {"adaptive_max_pool2d_cuda", kNotFloat}},
      {"upsample_nearest2d", {"upsample_nearest2d_out_frame", {Bool, Char, Short, Int, Long}}},
      {"grid_sampler_3d", {"grid_sampler_3d_cuda", kNotFloat}},
      {"grid_sampler_2d", {"grid_sampler_2d_cuda", kNotFloat}},
      {"segment_reduce", {"_segment_reduce_cuda", kNotFloat}},
      {"searchsorted", {"searchsorted_out_cuda", kNotReal}},
      {"bucketize", {"searchsorted_out_cuda", kNotReal}},
      {"im2col", {"im2col_out_cuda", {Byte, Char, Short, Int, Long}}},
      {"_cdist_forward", {"cdist_cuda", kNarrow}},
      // Maxima, minima and medians.
      {"amax", {"max_values_cuda", kComplex}},
      {"amin", {"min_values_cuda", kComplex}},
      {"aminmax", {"aminmax_cuda", kComplex}},
      {"max", {"max_all_cuda", kComplex, &reduces_all_dimensions}},
      {"min", {"min_all_cuda", kComplex, &reduces_all_dimensions}},
      {"clamp_min", {"max_elementwise_cuda", kComplex, &takes_two_tensors}},
      {"clamp_max", {"min_elementwise_cuda", kComplex, &takes_two_tensors}},
      {"topk", {"topk_out_cuda", kNotReal}},
      {"median", {"median", kNotReal, &reduces_all_dimensions}},
      {"nanmedian", {"median", kNotReal, &reduces_all_dimensions}},
      {"mode", {"mode_cuda", kComplex}},
      {"kthvalue", {"kthvalue_cuda", kNotReal}},
      {"_cummax_helper", {"cummax_cuda", kComplex}},
      {"_cummin_helper", {"cummin_cuda", kComplex}},
      {"_logcumsumexp",
       {"logcumsumexp_out_cuda", {Bool, Byte, Char, Short, Int, Long, ComplexHalf}}},
      {"cumsum", {"cumsum_cuda", {ComplexHalf}, &keeps_dtype}},
      {"cumprod", {"cumprod_cuda", {ComplexHalf}, &keeps_dtype}},
      // Pointwise operators. With two operands, checking the first suffices: if it has one of these
      // dtypes, CUDA refuses every dtype of the second.
      {"floor", {"floor_cuda", {Bool}}},
      {"ceil", {"ceil_cuda", {Bool}}},
      {"trunc", {"trunc_cuda", {Bool}}},
      {"round", {"round_cuda", kNotReal}},
      {"frac", {"frac_cuda", kNotFloat}},
      {"erf", {"erf_cuda", kComplex}},
      {"erfc", {"erfc_cuda", kComplex}},
      {"erfinv", {"erfinv_cuda", kComplex}},
      {"i0", {"i0_cuda", kComplex}},
      {"logit", {"logit_cuda", kComplex}},
      {"lgamma", {"lgamma_cuda", kComplex}},
      {"digamma", {"digamma_cuda", kComplex}},
      {"bitwise_not", {"bitwise_not_cuda", kInexact}},
      {"__lshift__", {"lshift_cuda", kInexact}},
      {"__rshift__", {"rshift_cuda", kInexact}},
      {"bitwise_left_shift", {"lshift_cuda", kInexact}},
      {"bitwise_right_shift", {"rshift_cuda", kInexact}},
      {"fmod", {"fmod_cuda", kComplex}},
      {"remainder", {"remainder_cuda", kComplex}},
      {"atan2", {"atan2_cuda", kComplex}},
      {"hypot", {"hypot_cuda", kComplex}},
      {"nextafter", {"nextafter_cuda", kComplex}},
      {"gcd", {"gcd_cuda", kInexact}},
      {"lcm", {"lcm_cuda", kInexact}},
      {"logaddexp2", {"logaddexp2_cuda", kComplex}},
      {"xlogy", {"xlogy_cuda", kComplex}},
      {"copysign", {"copysign_cuda", kComplex}},
      // Linear algebra.
      {"cholesky", {"cholesky_cusolver", kNotWide}},
      {"linalg_cholesky_ex", {"cholesky_cusolver", kNarrow}},
      {"cholesky_inverse", {"cholesky_inverse_out_cuda", kNotWide}},
      {"_cholesky_solve_helper", {"cholesky_solve_cuda", kNotWide}},
      {"linalg_householder_product", {"orgqr_cuda", kNotWide}},
      {"linalg_lu", {"lu_factor_cusolver", kNotWide}},
      {"linalg_lu_factor_ex", {"lu_factor_cusolver", kNotWide}},
      {"linalg_ldl_factor_ex", {"ldl_factor_kernel_cuda", kNarrow}},
      {"linalg_eig", {"linalg_eig_cuda", kNarrow}},
      {"_linalg_eigvals", {"linalg_eig_cuda", kNarrow}},
      {"_linalg_eigh", {"linalg_eigh_cuda", kNotWide}},
      {"linalg_qr", {"geqrf_cuda", kNarrow}},
      {"_linalg_det", {"lu_factor_cusolver", kNarrow}},
      {"_linalg_solve_ex", {"lu_factor_cusolver", kNarrow}},
      {"linalg_solve_triangular", {"triangular_solve_cuda", kNotWide}},
      {"triangular_solve", {"triangular_solve_cuda", kNotWide}},
      {"linalg_lu_solve", {"linalg.lu_solve_cuda", kNarrow}},
      {"linalg_ldl_solve", {"ldl_solve_kernel_cuda", kNarrow}},
      {"geqrf", {"geqrf_cuda", kNarrow}},
      {"ormqr", {"ormqr_cuda", kNotWide}},
      {"linalg_cross", {"cross_cuda", {Bool, ComplexHalf}}},
      {"_linalg_svd", {"svd_cuda_gesvdj", kNarrow}},
      {"lt", {"compare_cuda", kComplex}},
      {"gt", {"compare_cuda", kComplex}},
      {"le", {"compare_cuda", kComplex}},
      {"ge", {"compare_cuda", kComplex}},
      {"lerp", {"lerp_cuda", kIntegers}},
      {"reflection_pad1d", {"reflection_pad1d_out_template", {Bool}}},
      {"reflection_pad2d", {"reflection_pad2d_out_template", {Bool}}},
      {"bitwise_and", {"bitwise_and_cuda", kInexact}},
      {"bitwise_or", {"bitwise_or_cuda", kInexact}},
      {"bitwise_xor", {"bitwise_xor_cuda", kInexact}},
      {"igamma", {"igamma_cuda", kNarrow}},
      {"igammac", {"igammac_cuda", kNarrow}},
      {"angle", {"angle_cuda", kNarrow}},
      {"histc", {"histc", {Half, BFloat16, Bool, ComplexHalf, ComplexFloat, ComplexDouble}}},
      {"sparse_sampled_addmm", {"sampled_addmm_out_sparse_csr", kNarrow}},
      {"scatter", {"cuda_scatter_gather_base_kernel_func", kNotReal, &multiplies}},
      {"scatter_", {"cuda_scatter_gather_base_kernel_func", kNotReal, &multiplies}},
      {"scatter_reduce", {"cuda_scatter_gather_base_kernel_func", kNotReal, &is_not_sum}},
      {"scatter_reduce_", {"cuda_scatter_gather_base_kernel_func", kNotReal, &is_not_sum}},
  };
  const auto found = refusals.find(name);
  return found == refusals.end() ? nullptr : &found->second;
}

void check_not_refused(const Refusal& refusal, c10::ScalarType dtype, Arguments arguments) {
  const auto& refused = refusal.dtypes;
  TORCH_CHECK_NOT_IMPLEMENTED(
      std::find(refused.begin(), refused.end(), dtype) == refused.end() ||
          (refusal.applies != nullptr && !refusal.applies(arguments)),
      '"', refusal.kernel, "\" not implemented for '", c10::toString(dtype), "'");
}

} // namespace anyrig::virtual_gpu
