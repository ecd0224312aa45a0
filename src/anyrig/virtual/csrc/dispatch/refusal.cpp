#include "dispatch/refusal.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// scatter_reduce(self, dim, index, src, reduce): sums are made by another kernel.
bool is_no_sum(Arguments arguments) {
  return arguments[4].toStringRef() != "sum";
}

} // namespace

const Refusal* refusal_of(const std::string& name) {
  using enum c10::ScalarType;
  static const std::vector<c10::ScalarType> kIntegers = {Bool, Byte, Char, Short, Int, Long};
  // Of integers and of eight-bit floats, cuBLAS multiplies only by operators of their own.
  static const std::vector<c10::ScalarType> kNotMultiplied = {
      Bool, Byte, Char, Short, Int, Long,
      Float8_e4m3fn, Float8_e5m2, Float8_e4m3fnuz, Float8_e5m2fnuz};
  static const std::vector<c10::ScalarType> kNarrow = {Half, BFloat16};
  static const std::vector<c10::ScalarType> kFloats = {Half, BFloat16, Float, Double};
  static const std::vector<c10::ScalarType> kComplex = {ComplexHalf, ComplexFloat, ComplexDouble};
  static const std::vector<c10::ScalarType> kNotReal = {
      Bool, ComplexHalf, ComplexFloat, ComplexDouble};
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
      {"max_pool2d_with_indices", {"max_pool2d_with_indices_out_cuda_frame", kIntegers}},
      {"max_pool3d_with_indices", {"max_pool3d_with_indices_out_frame", kIntegers}},
      {"avg_pool2d", {"avg_pool2d_out_cuda_frame", kIntegers}},
      {"avg_pool3d", {"avg_pool3d_out_cuda", kIntegers}},
      {"upsample_bilinear2d", {"upsample_bilinear2d_out_frame", kIntegers}},
      {"upsample_bicubic2d", {"upsample_bicubic2d_out_frame", kIntegers}},
      {"_upsample_bilinear2d_aa", {"upsample_bilinear2d_out_frame", {Byte}}},
      {"native_dropout_backward", {"masked_scale", kIntegers}},
      {"_softmax", {"host_softmax", kIntegers}},
      {"_log_softmax", {"host_softmax", kIntegers}},
      {"mse_loss", {"mse_cuda", kIntegers}},
      {"smooth_l1_loss", {"smooth_l1_cuda", kIntegers}},
      {"huber_loss", {"huber_cuda", kIntegers}},
      {"gelu", {"GeluCUDAKernelImpl", kIntegers}},
      {"silu", {"silu_cuda", kIntegers}},
      {"elu", {"elu_cuda", kIntegers}},
      {"leaky_relu", {"leaky_relu_cuda", kIntegers}},
      {"softplus", {"softplus_cuda", kIntegers}},
      {"hardswish", {"hardswish_cuda", kIntegers}},
      {"native_layer_norm", {"LayerNormKernelImpl", kIntegers}},
      {"native_batch_norm", {"batch_norm_stats_cuda", kIntegers}},
      {"_adaptive_avg_pool2d", {"adaptive_avg_pool2d_cuda", kIntegers}},
      {"adaptive_max_pool2d", {"adaptive_max_pool2d_cuda", kIntegers}},
      {"upsample_nearest2d", {"upsample_nearest2d_out_frame", {Bool, Char, Short, Int, Long}}},
      {"grid_sampler_2d", {"grid_sampler_2d_cuda", kIntegers}},
      {"im2col", {"im2col_out_cuda", {Byte, Char, Short, Int, Long}}},
      {"_cdist_forward", {"cdist_cuda", kNarrow}},
      {"_linalg_svd", {"svd_cuda_gesvdj", kNarrow}},
      {"lt", {"compare_cuda", kComplex}},
      {"gt", {"compare_cuda", kComplex}},
      {"le", {"compare_cuda", kComplex}},
      {"ge", {"compare_cuda", kComplex}},
      {"reflection_pad2d", {"reflection_pad2d_out_template", {Bool}}},
      {"bitwise_and", {"bitwise_and_cuda", kFloats}},
      {"bitwise_or", {"bitwise_or_cuda", kFloats}},
      {"bitwise_xor", {"bitwise_xor_cuda", kFloats}},
      {"igamma", {"igamma_cuda", kNarrow}},
      {"igammac", {"igammac_cuda", kNarrow}},
      {"angle", {"angle_cuda", kNarrow}},
      {"histc", {"histc", kNarrow}},
      {"sparse_sampled_addmm", {"sampled_addmm_out_sparse_csr", kNarrow}},
      {"scatter", {"cuda_scatter_gather_base_kernel_func", kNotReal, &multiplies}},
      {"scatter_", {"cuda_scatter_gather_base_kernel_func", kNotReal, &multiplies}},
      {"scatter_reduce", {"cuda_scatter_gather_base_kernel_func", kNotReal, &is_no_sum}},
      {"scatter_reduce_", {"cuda_scatter_gather_base_kernel_func", kNotReal, &is_no_sum}},
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
