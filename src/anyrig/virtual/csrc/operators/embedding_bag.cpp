#include "dispatch/operator_record.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kMax = 2; // the mode whose backward needs the index of each maximum

using Bags = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Converts the CPU kernel's results to CUDA's. A fast path of the CPU kernel omits the bag of each
// index, and the kernel returns maximum indices in every mode. See _embedding_bag_cuda of
// aten/src/ATen/native/cuda/EmbeddingBag.cu.
Bags to_cuda_results(
    Bags bags,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    int64_t mode) {
  auto& [output, bag_of_index, bag_sizes, max_indices] = bags;
  if (bag_of_index.numel() != indices.numel()) {
    const auto positions = at::arange(indices.numel(), offsets.options());
    bag_of_index = at::searchsorted(offsets, positions, /*out_int32=*/false, /*right=*/true)
                       .sub_(1)
                       .to(indices.scalar_type());
  }
  if (mode != kMax && max_indices.numel() != 0) {
    max_indices = at::empty({0}, max_indices.options());
  }
  return bags;
}

template <auto Kernel>
Bags embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const std::optional<at::Tensor>& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  return to_cuda_results(
      Kernel(
          weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
          include_last_offset, padding_idx),
      indices, offsets, mode);
}

// The dense backward, whose CUDA kernel is nondeterministic for maxima.
bool is_dense_maximum(Arguments arguments) {
  constexpr int64_t kModeMax = 2;
  return arguments[8].toInt() == kModeMax && !arguments[9].toBool();
}

OperatorRecords embedding_bag_records() {
  return {
      {{"_embedding_bag"}, {.host_kernels = {host_kernel(&embedding_bag<&at::_embedding_bag>)}}},
      {{"_embedding_bag_forward_only"},
       {.host_kernels = {host_kernel(&embedding_bag<&at::_embedding_bag_forward_only>)}}},
      {{"_embedding_bag_backward"},
       {.nondeterministic = "embedding_bag_backward_cuda_max",
        .is_nondeterministic = is_dense_maximum}},
  };
}

const DeclaredRecords kEmbeddingBagRecords(embedding_bag_records());

} // namespace

} // namespace anyrig::virtual_gpu
