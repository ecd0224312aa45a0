// Records of work that is bound by memory: the kind of access, the number of passes and kernels.
// They follow PyTorch's kernels below aten/src/ATen/native/cuda, named at each group.
#include "time/records/memory_record.h"

#include <ATen/WrapDimUtils.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// Sort.cu: rows up to this length are sorted on chip, longer ones by radix, 8 bits a pass.
constexpr int64_t kLongestSortOnChip = 4096;
constexpr double kPositionBytes = 8;

// PersistentSoftmax.cuh: a warp keeps rows up to this length in its registers.
constexpr double kLongestSoftmaxInRegisters = 1024;
// SoftMax.cu: a block of the backward pass keeps a longer row in shared memory, if it fits.
constexpr double kSharedBytes = 48 * 1024;

// Embedding.cu: indices up to this number need no sort.
constexpr int64_t kFewIndices = 3072;
constexpr double kKernelsOfSortedScatter = 9;

// UpSampleBilinear2d.cu: fewer channels take the kernel for NCHW.
constexpr int64_t kLeastChannelsLast = 4;

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

// Normalizations: rows of columns.
void describe_rows(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const int place = rules.places.dimension;
  if (place < 0 || !arguments[0].isTensor() || !arguments[place].isIntList()) {
    return;
  }
  double columns = 1; // the sizes of the normalized part
  for (const int64_t size : arguments[place].toDimVector()) {
    columns *= static_cast<double>(size);
  }
  work.memory.rows = static_cast<double>(arguments[0].toTensor().numel()) / std::max(columns, 1.0);
}

// SoftMax.cu: a block works on each row. Along columns a thread walks down from row to row.
void describe_softmax(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const auto& tensor = arguments[0].toTensor();
  const int place = rules.places.dimension;
  if (place < 0 || !arguments[place].isInt() || tensor.dim() == 0) {
    return;
  }
  const int64_t dimension = at::maybe_wrap_dim(arguments[place].toInt(), tensor.dim());
  const auto length = static_cast<double>(tensor.size(dimension));
  // The kernels work on contiguous tensors.
  const bool is_along_rows =
      c10::numelements_from_dim(static_cast<int>(dimension) + 1, tensor.sizes()) == 1;
  work.memory.rows = is_along_rows ? 0 : length;
  const bool keeps_rows = rules.access == Access::SoftmaxBackward && is_along_rows &&
      length * static_cast<double>(tensor.element_size()) <= kSharedBytes;
  if (length > kLongestSoftmaxInRegisters && !keeps_rows) {
    description.read_passes = 2;
  }
}

// Sort.cu, and cub's radix sort: each pass reads and writes keys and indices.
void describe_sort(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const auto& keys = arguments[0].toTensor();
  const int place = rules.places.dimension;
  const int64_t dimension = place >= 0 && arguments[place].isInt() ? arguments[place].toInt() : -1;
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
  work.memory.elements = count;
}

// Reduce.cuh: blocks that share results add up their parts. They do so for a sum over all elements,
// and along columns, whose neighbouring elements belong to different results.
void describe_reduction(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  work.memory.rows = 1;
  const int place = rules.places.dimension;
  if (place < 0 || !arguments[0].isTensor() || arguments[0].toTensor().dim() == 0) {
    return;
  }
  const auto& tensor = arguments[0].toTensor();
  const auto& given = arguments[place];
  const auto dimensions = given.isIntList() ? given.toDimVector()
      : given.isInt()                       ? at::DimVector{given.toInt()}
                                            : at::DimVector{};
  const int64_t fastest = fastest_dimension(tensor);
  for (const int64_t dimension : dimensions) {
    const int64_t i = at::maybe_wrap_dim(dimension, tensor.dim());
    if (i == fastest) {
      work.memory.rows = 0;
      return;
    }
    work.memory.rows *= static_cast<double>(tensor.size(i));
  }
}

// UpSampleBicubic2d.cu and similar files: a thread computes one point in all planes, one after the
// other.
void describe_planes(const WorkRules& rules, Arguments arguments, Description& description) {
  Work& work = add_memory(rules, description.works);
  const auto& tensor = arguments[0].toTensor();
  if (tensor.dim() > 2) {
    work.memory.rows = static_cast<double>(tensor.size(0) * tensor.size(1));
  }
}

// UpSampleBilinear2d.cu: in channels-last order, each point of each plane has a thread.
void describe_bilinear(const WorkRules& rules, Arguments arguments, Description& description) {
  describe_planes(rules, arguments, description);
  const auto& tensor = arguments[0].toTensor();
  if (tensor.dim() == 4 && tensor.size(1) >= kLeastChannelsLast &&
      tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast) {
    description.works.back().memory.rows = 0;
  }
}

// SoftMax.cu: multiplies the gradient by the result first, in a kernel of its own.
void describe_softmax_gradient(
    const WorkRules& rules,
    Arguments arguments,
    Description& description) {
  describe_softmax(rules, arguments, description);
  const auto& gradient = arguments[0].toTensor();
  const double bytes = touched_bytes(gradient);
  description.works.push_back(memory_work(2 * bytes, bytes));
  description.works.back().memory.elements = static_cast<double>(gradient.numel());
}

// Embedding.cu: sorts many indices, so that no two threads add to one row.
void describe_embedding_gradient(
    const WorkRules& rules,
    Arguments arguments,
    Description& description) {
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
      {"_softmax", {{Access::Softmax}, describe_softmax}},
      {"_log_softmax", {{Access::Softmax}, describe_softmax}},
      {"_softmax_backward_data", {{Access::SoftmaxBackward}, describe_softmax_gradient}},
      {"_log_softmax_backward_data", {{Access::SoftmaxBackward}, describe_softmax}},
      // Reduce.cuh
      {"sum", {{kReduction}, describe_reduction}},
      {"nansum", {{kReduction}, describe_reduction}},
      {"mean", {{kReduction}, describe_reduction}},
      {"prod", {{kReduction}, describe_reduction}},
      {"amax", {{kReduction}, describe_reduction}},
      {"amin", {{kReduction}, describe_reduction}},
      {"aminmax", {{kReduction}, describe_reduction}},
      {"max", {{kReduction}, describe_reduction}},
      {"min", {{kReduction}, describe_reduction}},
      {"argmax", {{kReduction}, describe_reduction}},
      {"argmin", {{kReduction}, describe_reduction}},
      {"all", {{kReduction}, describe_reduction}},
      {"any", {{kReduction}, describe_reduction}},
      {"norm", {{kReduction}, describe_reduction}},
      {"linalg_vector_norm", {{kReduction}, describe_reduction}},
      {"var", {{kReduction}, describe_reduction}},
      {"std", {{kReduction}, describe_reduction}},
      {"var_mean", {{kReduction}, describe_reduction}},
      {"std_mean", {{kReduction}, describe_reduction}},
      {"logsumexp", {{kReduction, 1, 4}, describe_reduction}},
      {"count_nonzero", {{kReduction}, describe_reduction}},
      {"dot", {{kReduction}, describe_reduction}},
      {"vdot", {{kReduction}, describe_reduction}},
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
      {"upsample_linear1d", {{Access::Window}, describe_planes}},
      {"upsample_bilinear2d", {{Access::Window}, describe_bilinear}},
      {"upsample_bicubic2d", {{Access::Window}, describe_planes}},
      {"upsample_trilinear3d", {{Access::Window}, describe_planes}},
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
