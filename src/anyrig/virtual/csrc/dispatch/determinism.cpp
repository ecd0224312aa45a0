#include "dispatch/determinism.h"

#include <ATen/Context.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

bool of_floats(Arguments arguments) {
  return at::isFloatingType(arguments[0].toTensor().scalar_type());
}

bool has_weights(Arguments arguments) {
  return arguments[1].isTensor() && arguments[1].toTensor().defined();
}

// median(self) is deterministic; median(self, dim) also returns indices and is not.
bool returns_indices(Arguments arguments) {
  return arguments.size() > 1;
}

bool reduces_all(Arguments arguments) {
  return arguments[3].toInt() != at::Reduction::None;
}

// The dense backward, whose CUDA kernel is nondeterministic for maxima.
bool is_dense_maximum(Arguments arguments) {
  constexpr int64_t kModeMax = 2;
  return arguments[8].toInt() == kModeMax && !arguments[9].toBool();
}

// Without accumulation the CPU kernel raises the error itself.
bool accumulates(Arguments arguments) {
  return arguments[3].toBool();
}

// Returns whether a scatter multiplies by tensors. CUDA adds with the deterministic index_put, and
// its kernel for a number is deterministic.
bool multiplies_tensors(Arguments arguments) {
  return multiplies(arguments) && arguments[3].isTensor();
}

} // namespace

// The calls of alertNotDeterministic in libtorch_cuda of PyTorch 2.11 to 2.13.
const Nondeterminism* nondeterminism_of(const std::string& name) {
  static const std::unordered_map<std::string, Nondeterminism> kernels = {
      {"_adaptive_avg_pool2d_backward", {"adaptive_avg_pool2d_backward_cuda"}},
      {"_adaptive_avg_pool3d_backward", {"adaptive_avg_pool3d_backward_cuda"}},
      {"adaptive_max_pool2d_backward", {"adaptive_max_pool2d_backward_cuda"}},
      {"avg_pool3d_backward", {"avg_pool3d_backward_cuda"}},
      {"max_pool3d_with_indices_backward", {"max_pool3d_with_indices_backward_cuda"}},
      {"fractional_max_pool2d_backward", {"fractional_max_pool2d_backward_cuda"}},
      {"fractional_max_pool3d_backward", {"fractional_max_pool3d_backward_cuda"}},
      {"grid_sampler_2d_backward", {"grid_sampler_2d_backward_cuda"}},
      {"grid_sampler_3d_backward", {"grid_sampler_3d_backward_cuda"}},
      {"upsample_linear1d_backward", {"upsample_linear1d_backward_out_cuda"}},
      {"upsample_bilinear2d_backward", {"upsample_bilinear2d_backward_out_cuda"}},
      {"_upsample_bilinear2d_aa_backward", {"upsample_bilinear2d_aa_backward_out_cuda"}},
      {"upsample_bicubic2d_backward", {"upsample_bicubic2d_backward_out_cuda"}},
      {"_upsample_bicubic2d_aa_backward", {"upsample_bicubic2d_aa_backward_out_cuda"}},
      {"upsample_trilinear3d_backward", {"upsample_trilinear3d_backward_out_cuda"}},
      {"reflection_pad1d_backward", {"reflection_pad1d_backward_out_cuda"}},
      {"reflection_pad3d_backward", {"reflection_pad3d_backward_out_cuda"}},
      {"replication_pad1d_backward", {"replication_pad1d_backward_cuda"}},
      {"replication_pad2d_backward", {"replication_pad2d_backward_cuda"}},
      {"replication_pad3d_backward", {"replication_pad3d_backward_cuda"}},
      {"_ctc_loss_backward", {"ctc_loss_backward_gpu"}},
      {"nll_loss2d_forward", {"nll_loss2d_forward_out_cuda_template", &reduces_all}},
      {"_embedding_bag_backward", {"embedding_bag_backward_cuda_max", &is_dense_maximum}},
      {"index_reduce", {"index_reduce_cuda"}},
      {"index_reduce_", {"index_reduce_cuda"}},
      {"put_", {"put_", &accumulates}},
      {"scatter", {"scatter_reduce_cuda_kernel", &multiplies_tensors}},
      {"scatter_", {"scatter_reduce_cuda_kernel", &multiplies_tensors}},
      {"scatter_reduce", {"scatter_reduce_cuda_prod_", &multiplies_tensors}},
      {"scatter_reduce_", {"scatter_reduce_cuda_prod_", &multiplies_tensors}},
      {"bincount", {"_bincount_cuda", &has_weights}},
      {"histc", {"_histc_cuda with floating point input", &of_floats}},
      {"median", {"median CUDA with indices output", &returns_indices}},
      {"nanmedian", {"median CUDA with indices output", &returns_indices}},
  };
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

void check_deterministic(const Nondeterminism& nondeterminism, Arguments arguments) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() &&
      (nondeterminism.applies == nullptr || nondeterminism.applies(arguments))) {
    context.alertNotDeterministic(nondeterminism.kernel);
  }
}

} // namespace anyrig::virtual_gpu
