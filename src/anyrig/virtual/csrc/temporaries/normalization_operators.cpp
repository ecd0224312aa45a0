// The temporaries of normalizations and of norms of lists: {layer_norm_kernel,group_norm_kernel,
// ForeachReduceOp,Normalization}.cu and Normalization.cuh in aten/src/ATen/native/cuda.
#include "random/random_source.h"
#include "temporaries/reduction.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

int64_t accumulated_bytes(at::ScalarType dtype) {
  const bool is_narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  return is_narrow ? 4 : static_cast<int64_t>(c10::elementSize(dtype));
}

bool is_present(const c10::IValue& tensor) {
  return !tensor.isNone() && tensor.toTensor().defined();
}

// LaunchGammaBetaBackwardCUDAKernel: with many rows and few columns, blocks sum 32 rows each, and
// ordinary sums add the partial results up.
Temporaries of_layer_norm_backward(const c10::FunctionSchema& schema, Arguments arguments) {
  constexpr int64_t kManyRows = 64 * 1024;
  constexpr int64_t kColumnsPerBlock = 32;
  constexpr int64_t kRowsPerBlock = 32;
  constexpr int64_t kMostBlocks = 64 * 1024 / 2;
  const auto& input = arguments[1].toTensor();
  const int64_t columns = c10::multiply_integers(arguments[2].toDimVector());
  const int64_t rows = columns == 0 ? 0 : input.numel() / columns;
  const Multiprocessors gpu = multiprocessors(input.device().index());

  Temporaries temporaries;
  if (rows <= kManyRows || columns / kColumnsPerBlock >= int64_t{gpu.count} / 2) {
    return temporaries;
  }
  const int64_t across = (columns + kColumnsPerBlock - 1) / kColumnsPerBlock;
  const int64_t down = std::min(kMostBlocks / across, (rows + kRowsPerBlock - 1) / kRowsPerBlock);
  const auto wanted = arguments[*schema.argumentIndexWithName("output_mask")].toBoolList();
  if (!is_present(arguments[5])) {
    return temporaries;
  }
  const auto dtype = arguments[5].toTensor().scalar_type();
  const auto partial = at::detail::empty_strided_meta({down, columns}, {columns, 1}, dtype);
  const auto bytes = down * columns * static_cast<int64_t>(c10::elementSize(dtype));
  int partial_sums = 0;
  for (const size_t parameter : {1, 2}) { // the weight and the bias
    if (wanted.get(parameter)) {
      temporaries.allocate(bytes);
      ++partial_sums;
    }
  }
  for (int i = 0; i < partial_sums; ++i) {
    // The sum takes the place of the result that was allocated first.
    const int sum = temporaries.allocate(columns * static_cast<int64_t>(c10::elementSize(dtype)));
    temporaries.append(sum_temporaries(partial, /*dims=*/{0}, input.device().index()));
    temporaries.free(sum);
  }
  return temporaries;
}

struct Groups {
  int64_t samples, channels, pixels, groups;
};

// GroupNormKernelImplInternal: the factor and the summand of each channel.
Temporaries of_group_norm(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& input = arguments[0].toTensor();
  const Groups sizes{
      arguments[3].toInt(), arguments[4].toInt(), arguments[5].toInt(), arguments[6].toInt()};
  Temporaries temporaries;
  if (sizes.pixels > 1 && (is_present(arguments[1]) || is_present(arguments[2]))) {
    const int64_t bytes = sizes.samples * sizes.channels * accumulated_bytes(input.scalar_type());
    temporaries.allocate(bytes);
    temporaries.allocate(bytes);
  }
  return temporaries;
}

// GroupNormBackwardKernelImplInternal and GroupNorm1dBackward
Temporaries of_group_norm_backward(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& input = arguments[1].toTensor();
  const Groups sizes{
      arguments[5].toInt(), arguments[6].toInt(), arguments[7].toInt(), arguments[8].toInt()};
  const auto wanted = arguments[*schema.argumentIndexWithName("output_mask")].toBoolList();
  const int64_t element = accumulated_bytes(input.scalar_type());
  Temporaries temporaries;
  if (sizes.samples == 0) {
    return temporaries;
  }
  if (sizes.pixels > 1) {
    temporaries.allocate(sizes.samples * sizes.channels * element);
    temporaries.allocate(sizes.samples * sizes.channels * element);
  }
  if (wanted.get(0)) {
    const int by_group = temporaries.allocate(sizes.samples * sizes.groups * element);
    const int by_group_too = temporaries.allocate(sizes.samples * sizes.groups * element);
    const int by_channel = temporaries.allocate(
        is_present(arguments[4]) ? sizes.samples * sizes.channels * element : 0);
    temporaries.free(by_channel);
    temporaries.free(by_group_too);
    temporaries.free(by_group);
  }
  return temporaries;
}

bool has_channels_last(const at::Tensor& tensor) {
  return tensor.is_contiguous(at::MemoryFormat::ChannelsLast) ||
      tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d) ||
      (tensor.is_contiguous() && tensor.stride(1) == 1);
}

// Blocks of PyTorch's kernels for channels-last tensors meet in a buffer, with a counter for each
// column of blocks (flexible_launch_configs). `numbers` are those of each channel and block.
void stage_channels(Temporaries& temporaries, const at::Tensor& input, int64_t numbers) {
  constexpr int64_t kThreads = 512, kElementsPerThread = 16, kWidth = 32;
  constexpr int64_t kMostBlocks = 128, kFewestBlocks = 8;
  const int64_t channels = input.size(1), rows = input.numel() / channels;
  const auto parts = [](int64_t count, int64_t part) { return (count + part - 1) / part; };
  int64_t across = std::min(last_power_of_2(channels), kWidth);
  const int64_t down =
      std::min(last_power_of_2(parts(rows, kElementsPerThread)), kThreads / across);
  if (across * down != kThreads) {
    across = std::min(last_power_of_2(channels), kThreads / down);
  }
  const int64_t blocks = std::min(parts(rows, down * kElementsPerThread), kMostBlocks);
  if (blocks < kFewestBlocks) {
    return;
  }
  const int64_t element = accumulated_bytes(input.scalar_type());
  const int staging = temporaries.allocate(numbers * channels * blocks * element);
  temporaries.free(temporaries.allocate(parts(channels, across) * 4));
  temporaries.free(staging);
}

bool uses_channels_last_kernels(const at::Tensor& input) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  return input.dim() >= 2 && input.numel() > 0 && input.numel() < kLargest &&
      has_channels_last(input);
}

// batch_norm_stats_channels_last_cuda_template. cuDNN's batch normalization is another operator.
Temporaries of_batch_norm(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& input = arguments[0].toTensor();
  Temporaries temporaries;
  if (arguments[*schema.argumentIndexWithName("training")].toBool() &&
      uses_channels_last_kernels(input)) {
    stage_channels(temporaries, input, 4);
  }
  return temporaries;
}

// batch_norm_backward_reduce_cuda_channels_last_template. A GPU allocates the gradients of the
// parameters before the staging buffer.
Temporaries of_batch_norm_backward(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& input = arguments[1].toTensor();
  Temporaries temporaries;
  if (arguments[*schema.argumentIndexWithName("train")].toBool() &&
      uses_channels_last_kernels(input) && has_channels_last(arguments[0].toTensor())) {
    const int64_t sums = input.size(1) * accumulated_bytes(input.scalar_type());
    temporaries.allocate(sums);
    temporaries.allocate(sums);
    stage_channels(temporaries, input, 2);
    temporaries.results_follow();
  }
  return temporaries;
}

// foreach_tensor_norm_cuda and foreach_tensor_max_cuda: one number for each chunk, in the order of
// the tensors.
Temporaries of_list(const c10::FunctionSchema& schema, Arguments arguments) {
  constexpr int64_t kChunk = 65536; // of MultiTensorApply.cuh
  const auto tensors = arguments[0].toTensorVector();
  int64_t most_chunks = 0;
  for (const auto& tensor : tensors) {
    most_chunks = std::max(most_chunks, (tensor.numel() + kChunk - 1) / kChunk);
  }
  const auto dtype = tensors[0].scalar_type();
  const bool is_norm = schema.name() == "aten::_foreach_norm";
  Temporaries temporaries;
  temporaries.allocate(
      static_cast<int64_t>(tensors.size()) * most_chunks *
      (is_norm ? accumulated_bytes(dtype) : static_cast<int64_t>(c10::elementSize(dtype))));
  temporaries.results_follow();
  return temporaries;
}

} // namespace

TemporariesOf normalization_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"native_layer_norm_backward", &of_layer_norm_backward},
      {"native_group_norm", &of_group_norm},
      {"native_group_norm_backward", &of_group_norm_backward},
      {"native_batch_norm", &of_batch_norm},
      {"_native_batch_norm_legit", &of_batch_norm},
      {"native_batch_norm_backward", &of_batch_norm_backward},
      {"_foreach_norm", &of_list},
      {"_foreach_max", &of_list},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
