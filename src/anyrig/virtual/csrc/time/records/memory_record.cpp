// Records of work that is bound by memory: the kind of access, the number of passes and kernels.
// They follow PyTorch's kernels below aten/src/ATen/native/cuda, named at each group.
#include "time/records/memory_record.h"

#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// Sort.cu: rows up to this length are sorted on chip, longer ones by radix, 8 bits a pass.
constexpr int64_t kLongestSortOnChip = 4096;
constexpr double kPositionBytes = 8;

// PersistentSoftmax.cuh: a warp keeps rows up to this length in its registers.
constexpr double kLongestSoftmaxInRegisters = 1024;

// Embedding.cu: indices up to this number need no sort.
constexpr int64_t kFewIndices = 3072;
constexpr double kKernelsOfSortedScatter = 9;

Work& add_memory(const WorkRules& rules, Works& works) {
  Work& work = works.emplace_back();
  work.memory.access = rules.access;
  work.kernels = rules.kernels;
  return work;
}

// Normalization.cu and cuDNN: statistics over the batch take a pass of their own.
void describe_batch_norm(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const int place = rules.places.training;
  if (place >= 0 && arguments[place].isBool() && !arguments[place].toBool()) {
    work.memory.access = Access::Pointwise; // with running statistics
    description.read_passes = 1;
  }
}

// Softmax and normalizations: rows of columns.
void describe_rows(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const int place = rules.places.dimension;
  if (place < 0 || !arguments[0].isTensor()) {
    return;
  }
  const auto& tensor = arguments[0].toTensor();
  double columns = 1;
  if (arguments[place].isInt() && tensor.dim() > 0) {
    columns = static_cast<double>(
        tensor.size(at::maybe_wrap_dim(arguments[place].toInt(), tensor.dim())));
  } else if (arguments[place].isIntList()) { // the sizes of the normalized part
    for (const int64_t size : arguments[place].toDimVector()) {
      columns *= static_cast<double>(size);
    }
  } else {
    return;
  }
  work.memory.rows = static_cast<double>(tensor.numel()) / std::max(columns, 1.0);
  const bool is_softmax =
      rules.access == Access::Softmax || rules.access == Access::SoftmaxBackward;
  if (is_softmax && columns > kLongestSoftmaxInRegisters) {
    description.read_passes = 2;
  }
}

// Sort.cu, and cub's radix sort: each pass reads and writes keys and indices.
void describe_sort(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const auto& keys = arguments[0].toTensor();
  const int place = rules.places.dimension;
  const int64_t dimension =
      place >= 0 && arguments[place].isInt() ? arguments[place].toInt() : -1;
  const int64_t columns =
      keys.dim() == 0 ? 1 : keys.size(at::maybe_wrap_dim(dimension, keys.dim()));
  const auto count = static_cast<double>(keys.numel());
  const double bytes = count * (static_cast<double>(keys.element_size()) + kPositionBytes);
  const double passes =
      columns <= kLongestSortOnChip ? 1 : static_cast<double>(keys.element_size());
  work.kernels = 1 + 2 * passes;
  work.bytes_read = passes * bytes;
  work.bytes_written = passes * bytes;
  work.footprint_bytes = 2 * bytes;
  work.memory.rows = count / static_cast<double>(std::max<int64_t>(columns, 1));
}

// Embedding.cu: sorts many indices, so that no two threads add to one row.
void describe_embedding_gradient(
    const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  work.kernels = 2; // fills the result with zeros
  if (arguments[1].isTensor() && arguments[1].toTensor().numel() > kFewIndices) {
    work.kernels += kKernelsOfSortedScatter;
  }
}

// Indexing.cu: adds equal indices up by sorting them.
void describe_put(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  if (arguments.size() > 3 && arguments[3].isBool() && arguments[3].toBool()) {
    work.kernels = 1 + kKernelsOfSortedScatter;
  }
}

struct NamedRule {
  MemoryRule rule;
  Describe describe = nullptr;
};

const std::unordered_map<std::string, NamedRule>& rules() {
  constexpr auto kReduction = Access::Reduction;
  static const std::unordered_map<std::string, NamedRule> rules = {
      // layer_norm_kernel.cu: the backward pass reads for the input and again for the weights.
      {"native_layer_norm", {{Access::Normalization}, describe_rows}},
      {"_fused_rms_norm", {{Access::Normalization}, describe_rows}},
      {"native_layer_norm_backward", {{Access::NormalizationBackward, 2, 2}, describe_rows}},
      {"_fused_rms_norm_backward", {{Access::NormalizationBackward, 2, 2}, describe_rows}},
      // group_norm_kernel.cu: moments, the parameters of each channel, the result.
      {"native_group_norm", {{Access::Normalization, 2, 3}}},
      {"native_group_norm_backward", {{Access::NormalizationBackward, 2, 4}}},
      // cuDNN's and Normalization.cu
      {"native_batch_norm", {{Access::BatchNorm, 2}, describe_batch_norm}},
      {"cudnn_batch_norm", {{Access::BatchNorm, 2}, describe_batch_norm}},
      {"_native_batch_norm_legit", {{Access::BatchNorm, 2}, describe_batch_norm}},
      {"_batch_norm_with_update", {{Access::BatchNorm, 2}}},
      {"native_batch_norm_backward", {{Access::BatchNormBackward, 2}, describe_batch_norm}},
      {"cudnn_batch_norm_backward", {{Access::BatchNormBackward, 2}}},
      {"batch_norm_backward", {{Access::BatchNormBackward, 2}, describe_batch_norm}},
      {"batch_norm_stats", {{kReduction}}},
      {"batch_norm_backward_reduce", {{kReduction}}},
      // SoftMax.cu
      {"_softmax", {{Access::Softmax}, describe_rows}},
      {"_log_softmax", {{Access::Softmax}, describe_rows}},
      {"_softmax_backward_data", {{Access::SoftmaxBackward}, describe_rows}},
      {"_log_softmax_backward_data", {{Access::SoftmaxBackward}, describe_rows}},
      // Reduce.cuh
      {"sum", {{kReduction}}},
      {"nansum", {{kReduction}}},
      {"mean", {{kReduction}}},
      {"prod", {{kReduction}}},
      {"amax", {{kReduction}}},
      {"amin", {{kReduction}}},
      {"aminmax", {{kReduction}}},
      {"max", {{kReduction}}},
      {"min", {{kReduction}}},
      {"argmax", {{kReduction}}},
      {"argmin", {{kReduction}}},
      {"all", {{kReduction}}},
      {"any", {{kReduction}}},
      {"norm", {{kReduction}}},
      {"linalg_vector_norm", {{kReduction}}},
      {"var", {{kReduction}}},
      {"std", {{kReduction}}},
      {"var_mean", {{kReduction}}},
      {"std_mean", {{kReduction}}},
      {"logsumexp", {{kReduction, 1, 4}}},
      {"count_nonzero", {{kReduction}}},
      {"dot", {{kReduction}}},
      {"vdot", {{kReduction}}},
      {"mv", {{kReduction}}},
      {"addmv", {{kReduction}}},
      // Indexing.cu, IndexKernel.cu, ScatterGatherKernel.cu
      {"gather", {{Access::Gather}}},
      {"index", {{Access::Gather}}},
      {"_unsafe_index", {{Access::Gather}}},
      {"index_select", {{Access::Gather}}},
      {"take", {{Access::Gather}}},
      {"masked_select", {{Access::Gather, 2, 4}}},
      {"nonzero", {{Access::Gather, 2, 3}}},
      {"_embedding_bag", {{Access::Gather}}},
      {"_embedding_bag_forward_only", {{Access::Gather}}},
      {"index_add_", {{Access::Scatter}}},
      {"index_copy_", {{Access::Scatter}}},
      {"index_put_", {{Access::Scatter}, describe_put}},
      {"_index_put_impl_", {{Access::Scatter}, describe_put}},
      {"put_", {{Access::Scatter}}},
      {"scatter_", {{Access::Scatter}}},
      {"scatter_add_", {{Access::Scatter}}},
      {"scatter_reduce_", {{Access::Scatter}}},
      {"masked_scatter_", {{Access::Scatter, 1, 3}}},
      {"embedding_dense_backward", {{Access::Scatter}, describe_embedding_gradient}},
      {"_embedding_bag_dense_backward", {{Access::Scatter}, describe_embedding_gradient}},
      // Sort.cu, TensorTopK.cu (selects by radix, 8 bits a pass), ScanKernels.cu
      {"sort", {{Access::Sort}, describe_sort}},
      {"argsort", {{Access::Sort}, describe_sort}},
      {"msort", {{Access::Sort}, describe_sort}},
      {"topk", {{Access::Sort, 4, 5}}},
      {"kthvalue", {{Access::Sort, 4}}},
      {"median", {{Access::Sort, 4}}},
      {"nanmedian", {{Access::Sort, 4}}},
      {"cumsum", {{Access::Scan}}},
      {"cumprod", {{Access::Scan}}},
      {"cummax", {{Access::Scan}}},
      {"cummin", {{Access::Scan}}},
      {"logcumsumexp", {{Access::Scan}}},
      // DilatedMaxPool2d.cu, AveragePool2d.cu, UpSample*.cu, Im2Col.cu
      {"max_pool2d_with_indices", {{Access::Window}}},
      {"max_pool3d_with_indices", {{Access::Window}}},
      {"avg_pool2d", {{Access::Window}}},
      {"avg_pool3d", {{Access::Window}}},
      {"_adaptive_avg_pool2d", {{Access::Window}}},
      {"_adaptive_avg_pool3d", {{Access::Window}}},
      {"adaptive_max_pool2d", {{Access::Window}}},
      {"upsample_nearest2d", {{Access::Window}}},
      {"upsample_bilinear2d", {{Access::Window}}},
      {"upsample_bicubic2d", {{Access::Window}}},
      {"grid_sampler_2d", {{Access::Window}}},
      {"im2col", {{Access::Window}}},
      {"col2im", {{Access::Window}}},
      {"max_pool2d_with_indices_backward", {{Access::WindowBackward, 1, 2}}},
      {"max_pool3d_with_indices_backward", {{Access::WindowBackward, 1, 2}}},
      {"avg_pool2d_backward", {{Access::WindowBackward}}},
      {"avg_pool3d_backward", {{Access::WindowBackward}}},
      {"_adaptive_avg_pool2d_backward", {{Access::WindowBackward}}},
      {"_adaptive_avg_pool3d_backward", {{Access::WindowBackward}}},
      {"upsample_nearest2d_backward", {{Access::WindowBackward}}},
      {"upsample_bilinear2d_backward", {{Access::WindowBackward, 1, 2}}},
      {"upsample_bicubic2d_backward", {{Access::WindowBackward, 1, 2}}},
      {"grid_sampler_2d_backward", {{Access::WindowBackward, 1, 2}}},
      // Dropout.cu, Distribution*.cu
      {"native_dropout", {{Access::Random}}},
      {"bernoulli_", {{Access::Random}}},
      {"normal_", {{Access::Random}}},
      {"uniform_", {{Access::Random}}},
      {"random_", {{Access::Random}}},
      {"exponential_", {{Access::Random}}},
      {"multinomial", {{Access::Random, 1, 6}}},
  };
  return rules;
}

} // namespace

MemoryRule memory_rule_of(const std::string& name) {
  const auto found = rules().find(name);
  return found == rules().end() ? MemoryRule{} : found->second.rule;
}

Describe find_memory(const std::string& name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : found->second.describe;
}

} // namespace anyrig::virtual_gpu
