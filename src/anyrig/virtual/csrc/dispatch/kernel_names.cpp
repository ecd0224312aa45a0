#include "dispatch/kernel_names.h"

#include <string>
#include <string_view>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// The names of the dispatch macros below aten/src/ATen/native, the CPU's and CUDA's, where they
// differ by more than their ending.
const std::unordered_map<std::string_view, std::string_view>& irregular_names() {
  static const std::unordered_map<std::string_view, std::string_view> names = {
      // products: cuda/Blas.cpp
      {"addmm_impl_cpu_", "addmm_cuda"},
      {"baddbmm", "baddbmm_cuda"},
      {"baddbmm_with_gemm", "baddbmm_cuda"},
      {"bmm", "baddbmm_cuda"},
      // activations: cuda/Activation*.cu, cuda/SoftMax.cu
      {"GeluKernelImpl", "GeluCUDAKernelImpl"},
      {"log_sigmoid_cpu", "log_sigmoid_forward_cuda"},
      {"log_softmax_kernel_impl", "host_softmax"},
      {"log_softmax_lastdim_kernel_impl", "host_softmax"},
      {"softmax_kernel_impl", "host_softmax"},
      {"softmax_lastdim_kernel_impl", "host_softmax"},
      {"softmax_backward_kernel_impl", "host_softmax_backward"},
      {"softmax_backward_lastdim_kernel_impl", "host_softmax_backward"},
      {"softshrink_check", "softshrink_cuda"},
      // pooling, padding, resizing, sampling: cuda/*Pool*.cu, cuda/*Pad.cu, cuda/UpSample*.cu
      {"adaptive_avg_pool2d", "adaptive_avg_pool2d_cuda"},
      {"adaptive_max_pool2d", "adaptive_max_pool2d_cuda"},
      {"avg_pool2d", "avg_pool2d_out_cuda_frame"},
      {"avg_pool3d_out_frame", "avg_pool3d_out_cuda"},
      {"max_pool2d", "max_pool2d_with_indices_out_cuda_frame"},
      {"max_pool3d", "max_pool3d_with_indices_out_frame"},
      {"max_unpool2d", "max_unpooling2d_forward_kernel"},
      {"max_unpool3d", "max_unpooling3d_forward_kernel"},
      {"reflection_pad1d", "reflection_pad1d_out"},
      {"reflection_pad2d", "reflection_pad2d_out_template"},
      {"replication_pad1d", "replication_pad1d_cuda"},
      {"replication_pad2d", "replication_pad2d_cuda"},
      {"replication_pad3d", "replication_pad3d_cuda"},
      {"compute_indices_weights_cubic", "upsample_bicubic2d_out_frame"},
      {"compute_indices_weights_linear", "upsample_bilinear2d_out_frame"},
      {"compute_indices_weights_nearest", "upsample_nearest2d_out_frame"},
      {"upsample_bilinear2d_channels_last", "upsample_bilinear2d_out_frame"},
      {"grid_sampler_2d_cpu_kernel_impl", "grid_sampler_2d_cuda"},
      {"grid_sampler3d_cpu", "grid_sampler_3d_cuda"},
      // normalisation and losses: cuda/Normalization.cuh, cuda/*Loss*.cu
      {"batch_norm", "batch_norm_stats_cuda"},
      {"multi_margin_loss_cpu_kernel", "multi_margin_loss_cuda"},
      {"multilabel_margin_loss_forward_out_frame", "multilabel_margin_loss_forward_kernel"},
      {"nll_loss_out_frame", "nll_loss_forward_reduce_cuda_kernel_2d"},
      // number by number: cuda/Compare*.cu, cuda/Pointwise*.cu, cuda/Unary*.cu
      {"eq_cpu", "compare_eq_ne_cuda"},
      {"ne_cpu", "compare_eq_ne_cuda"},
      {"ge_cpu", "compare_cuda"},
      {"gt_cpu", "compare_cuda"},
      {"le_cpu", "compare_cuda"},
      {"lt_cpu", "compare_cuda"},
      {"addcdiv_cpu_out", "addcdiv_cuda"},
      {"addcmul_cpu_out", "addcmul_cuda"},
      {"maximum_cpu", "max_elementwise_cuda"},
      {"minimum_cpu", "min_elementwise_cuda"},
      {"digamma", "digamma_cuda"},
      {"exp2", "exp2_cuda"},
      {"lerp_kernel_scalar", "lerp_cuda"},
      {"lerp_kernel_tensor", "lerp_cuda"},
      {"nan_to_num", "nan_to_num_cuda"},
      {"polygamma", "polygamma_cuda"},
      {"pow", "pow_cuda"},
      {"trigamma", "trigamma_cuda"},
      // distances, sums along a dimension, order
      {"cdist", "cdist_cuda"},
      {"cross", "cross_cuda"},
      {"pdist", "pdist_cuda"},
      {"cumprod_out_cpu", "cumprod_cuda"},
      {"cumsum_out_cpu", "cumsum_cuda"},
      {"max_all", "max_all_cuda"},
      {"min_all", "min_all_cuda"},
      {"median_out", "median_out_impl"},
      // linear algebra: cuda/linalg
      {"cholesky_cpu", "cholesky_cusolver"},
      {"linalg_eig_out_cpu", "linalg_eig_cuda"},
      {"linalg_svd_cpu", "svd_cuda_gesvdj"},
      {"lu_cpu", "lu_factor_cusolver"},
      {"triangular_solve_out_sparse_csr_impl_mkl", "triangular_solve_out_sparse_csr_cuda_impl"},
  };
  return names;
}

std::string cuda_name_of(std::string_view name) {
  const auto irregular = irregular_names().find(name);
  if (irregular != irregular_names().end()) {
    return std::string(irregular->second);
  }
  // "_vml": kernels of the CPU that call Intel's vector library.
  for (const std::string_view ending : {"_vml_cpu", "_cpu"}) {
    if (name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending) {
      return std::string(name.substr(0, name.size() - ending.size())) + "_cuda";
    }
  }
  return std::string(name);
}

} // namespace

void raise_with_cuda_name(const c10::Error& error) {
  static constexpr std::string_view kRefusal = "\" not implemented for '";
  static constexpr std::string_view kFactors = "expected m1 and m2 to have the same dtype";
  const std::string text = error.what_without_backtrace();
  TORCH_CHECK(
      text.rfind(kFactors, 0) != 0, "expected mat1 and mat2 to have the same dtype",
      text.substr(kFactors.size()));
  const size_t end = text.find(kRefusal);
  if (text.empty() || text[0] != '"' || end == std::string::npos) {
    return;
  }
  const std::string name = text.substr(1, end - 1);
  const std::string cuda_name = cuda_name_of(name);
  TORCH_CHECK_NOT_IMPLEMENTED(cuda_name == name, '"', cuda_name, text.substr(end));
}

} // namespace anyrig::virtual_gpu
