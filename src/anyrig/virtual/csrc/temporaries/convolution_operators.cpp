// The temporaries of convolutions: copies of operands in another memory format, a workspace of cuDNN
// for each pass, and the sum that gives a bias gradient. aten/src/ATen/native/Convolution.cpp and
// {ConvShared,Conv_v8}.cpp in aten/src/ATen/native/cudnn.
//
//   forward:   copy of the input │ output │ copy of the weight, workspace
//   backward:  copies │ input gradient │ workspace │ weight gradient │ workspace │ bias gradient │ sum
//
// The size of a workspace is known to cuDNN alone, which chooses among many algorithms. Where it does
// not fit, PyTorch tries the next: algorithms without a workspace exist for all layers.
//
// Hopper: the rules that an H100 with cuDNN 9.19 followed in most of 70 layers.
//
//   matrix units, NCHW    copies of all operands in NHWC, whose channels are padded to 16 bytes: such
//                         kernels read and write NHWC. A 1×1 kernel is the same in both. With stride 1
//                         and planes of a multiple of 4 pixels (of 16 bytes for the gradient of the
//                         weight) it is a product in place
//   matrix units, NHWC    copies of operands whose channels are not a multiple of 16 bytes
//   gradient of a weight  in addition, sums in float32 of parts of the batch, so that there are about
//                         as many blocks as multiprocessors; of a product in place, one for each image
//   float32 without matrix units
//     NHWC                copies of all operands
//     3×3 with stride 1   Winograd's transformed filters. The H100 asked for nothing or for much more
//   depthwise             nothing, but in NHWC copies for the gradient of a weight larger than 5×5
//
// Other GPUs: assumed. With the rules of the H100, training steps that ran on an RTX 3090 with cuDNN
// 8.3 (timm's results) would run out of memory.
//
//   matrix units, NCHW    copies of all operands in NHWC, padded
//   3×3 with stride 1, float32 without matrix units
//                         Winograd's transformed filters, 16 numbers for each pair of channels, as
//                         LBANN/lbann pull request 437 reports (256 KiB for 64 by 64 channels)
//   all others            nothing
#include "device/device.h"
#include "temporaries/reduction.h"
#include "time/records/operator_work.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

int64_t bytes_to_convolve(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (input.suggest_memory_format() == format || weight.suggest_memory_format() == format) {
      return format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

bool has_format(const at::Tensor& tensor, at::MemoryFormat format) {
  const int64_t dimensions = format == at::MemoryFormat::ChannelsLast ? 4 : 5;
  return format == at::MemoryFormat::Contiguous || tensor.dim() == dimensions
      ? tensor.is_contiguous(format)
      : true;
}

bool are_all(const c10::IValue& numbers, int64_t number) {
  const auto list = numbers.toDimVector();
  return std::all_of(list.begin(), list.end(), [&](int64_t each) { return each == number; });
}

// Whether a list has at least one number and none below `least`; otherwise the operator refuses it.
bool is_valid_list(const c10::IValue& numbers, int64_t least) {
  const auto list = numbers.toDimVector();
  return !list.empty() &&
      std::all_of(list.begin(), list.end(), [&](int64_t each) { return each >= least; });
}

enum class Pass { Forward, Data, Weight };

// A convolution, as far as its workspaces depend on it.
struct ConvolvedLayer {
  const at::Tensor& input;
  const at::Tensor& weight;
  int64_t output_elements;
  int64_t output_channels;
  int64_t groups;
  bool is_dense; // stride and dilation are 1
  bool is_padded;

  int64_t workspace_bytes(Pass pass) const {
    if (!is_hopper()) {
      return assumed_bytes();
    }
    if (is_depthwise()) {
      const bool copies = pass == Pass::Weight && is_last() && kernel_elements() > 25;
      return copies && uses_matrix_units() ? bytes_of(input.numel() + output_elements) : 0;
    }
    if (uses_matrix_units()) {
      return matrix_unit_bytes(pass);
    }
    if (input.scalar_type() != at::kFloat || groups > 1) {
      return 0;
    }
    if (is_last()) {
      return bytes_of(
          input.numel() + output_elements + (kernel_elements() > 1 ? weight.numel() : 0));
    }
    return transformed_filter_bytes();
  }

 private:
  static constexpr int64_t kSumBytes = 4;

  bool is_hopper() const { return devices()[input.device().index()].capability_major == 9; }
  // Returns what earlier GPUs are assumed to take, the same in each pass.
  int64_t assumed_bytes() const {
    if (is_depthwise() || is_last()) {
      return 0;
    }
    if (uses_matrix_units()) {
      return bytes_of(
          input.numel() / input.size(1) * padded_channels(input.size(1)) +
          output_elements / output_channels * padded_channels(output_channels) +
          kernel_elements() * weight.size(0) * padded_channels(weight.size(1) * groups) / groups);
    }
    return groups == 1 ? transformed_filter_bytes() : 0;
  }
  int64_t transformed_filter_bytes() const {
    const bool is_three = weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3;
    const bool is_single = input.scalar_type() == at::kFloat;
    return is_three && is_single && is_dense ? bytes_of(16 * weight.size(0) * weight.size(1)) : 0;
  }

  static int64_t divide_up(int64_t number, int64_t divisor) {
    return (number + divisor - 1) / divisor;
  }
  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(input.element_size());
  }
  bool is_depthwise() const { return groups > 1 && input.size(1) == groups; }
  bool is_last() const { return convolution_format(input, weight) != at::MemoryFormat::Contiguous; }
  int64_t kernel_elements() const { return weight.numel() / (weight.size(0) * weight.size(1)); }
  bool uses_matrix_units() const {
    const auto precision = precision_of(input.scalar_type(), Family::Convolution);
    return devices()[input.device().index()].gpu.uses_matrix_units(precision);
  }
  // Returns the rows of the product that gives the results of a pass: pixels, or input channels
  // times the elements of the kernel.
  int64_t rows(Pass pass) const {
    switch (pass) {
      case Pass::Forward:
        return output_elements / output_channels;
      case Pass::Data:
        return input.numel() / input.size(1);
      case Pass::Weight:
        return weight.numel() / weight.size(0);
    }
    return 0;
  }
  int64_t columns(Pass pass) const {
    return pass == Pass::Data  ? input.size(1)
        : pass == Pass::Weight ? weight.size(0)
                               : output_channels;
  }

  int64_t padded_channels(int64_t channels) const {
    constexpr int64_t kAlignment = 16;
    const int64_t step = std::max<int64_t>(1, kAlignment / bytes_of(1));
    return divide_up(channels / groups, step) * step * groups;
  }
  bool is_aligned(int64_t channels) const { return padded_channels(channels) == channels; }

  int64_t matrix_unit_bytes(Pass pass) const {
    const int64_t plane = input.numel() / (input.size(0) * input.size(1));
    const bool is_product = kernel_elements() == 1 && is_dense && !is_padded && groups == 1 &&
        (pass == Pass::Weight ? bytes_of(plane) % 16 == 0 : plane % 4 == 0);
    if (is_product && !is_last()) {
      return pass == Pass::Weight ? input.size(0) * weight.numel() * kSumBytes : 0;
    }
    // Kernels in TF32 for images of few channels read these unpadded.
    const bool pads = !(pass == Pass::Forward && bytes_of(1) == 4 && input.size(1) < 4);
    const auto pad = [&](int64_t channels) { return pads ? padded_channels(channels) : channels; };
    const bool copies_input = !is_last() || !is_aligned(input.size(1));
    const bool copies_output = !is_last() || !is_aligned(output_channels);
    const bool copies_weight =
        kernel_elements() > 1 || !is_aligned(input.size(1)) || !is_aligned(output_channels);
    int64_t elements = 0;
    if (copies_input) {
      elements += input.numel() / input.size(1) * pad(input.size(1));
    }
    if (copies_output) {
      elements += output_elements / output_channels * pad(output_channels);
    }
    if ((copies_input || copies_output) && copies_weight) {
      elements += kernel_elements() * pad(weight.size(0)) * pad(weight.size(1) * groups) / groups;
    }
    const int64_t multiprocessors = devices()[input.device().index()].multiprocessors;
    int64_t sums = 0;
    if (pass == Pass::Weight) {
      sums = partial_sums(multiprocessors) * weight.numel() * kSumBytes;
    }
    return bytes_of(elements) + sums + hopper_bytes(pass, elements > 0, sums > 0, multiprocessors);
  }

  // Returns how many parts of the batch have sums of their own.
  int64_t partial_sums(int64_t multiprocessors) const {
    const bool is_narrow = bytes_of(1) < 4;
    const int64_t pixels_of_part = is_narrow ? 12 * 1024 : 3 * 1024;
    const int64_t tile = weight.size(0) <= 64 ? 64 : 128;
    const int64_t tiles =
        divide_up(columns(Pass::Weight), tile) * divide_up(rows(Pass::Weight), tile);
    const int64_t parts = std::min(multiprocessors / tiles, rows(Pass::Forward) / pixels_of_part);
    return parts > 1 ? parts : 0;
  }

  // The memory that kernels for Hopper take in addition to their operands: a header of the copies,
  // and the counters with which each multiprocessor finds its next tile, if there are more tiles
  // than multiprocessors.
  int64_t hopper_bytes(Pass pass, bool has_copies, bool has_sums, int64_t multiprocessors) const {
    constexpr int64_t kHeaderBytes = 16, kCounterBytes = 131, kTile = 128;
    const int64_t tiles = divide_up(rows(pass), kTile) * divide_up(columns(pass), kTile);
    return (has_copies ? kHeaderBytes : 0) +
        (tiles > multiprocessors && !has_sums ? kCounterBytes : 0);
  }
};

bool is_batch_of_images(const at::Tensor& input, const at::Tensor& weight) {
  return input.layout() == at::kStrided && weight.layout() == at::kStrided && input.numel() > 0 &&
      weight.numel() > 0 && input.dim() == weight.dim() && input.dim() >= 4;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
// One-dimensional convolutions arrive here as images of height 1 on a GPU; their workspaces are not
// counted, nor are those of an operand without a batch.
Temporaries of_convolution(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  Temporaries steps;
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  if (!is_batch_of_images(input, weight) || !weight.is_cuda() || groups <= 0 ||
      !is_valid_list(arguments[3], 1) || !is_valid_list(arguments[4], 0) ||
      !is_valid_list(arguments[5], 1) || !is_valid_list(arguments[7], 0)) {
    return steps;
  }
  const auto stride = arguments[3].toDimVector(), padding = arguments[4].toDimVector(),
             dilation = arguments[5].toDimVector(), extra = arguments[7].toDimVector();
  int64_t outputs = input.size(0);
  for (int64_t i = 2; i < input.dim() && outputs > 0; ++i) {
    const auto at = [&](const at::DimVector& list) {
      return list[std::min<size_t>(static_cast<size_t>(i) - 2, list.size() - 1)];
    };
    const int64_t reach = at(dilation) * (weight.size(i) - 1);
    const int64_t size = transposed
        ? (input.size(i) - 1) * at(stride) - 2 * at(padding) + reach + at(extra) + 1
        : (input.size(i) + 2 * at(padding) - reach - 1) / at(stride) + 1;
    outputs *= std::max<int64_t>(size, 0);
  }
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  if (outputs <= 0) {
    return steps; // the operator's own error, or nothing to compute
  }
  const auto format = convolution_format(input, weight);
  if (!has_format(input, format)) {
    steps.allocate(bytes_to_convolve(input));
  }
  steps.results_follow();
  if (!has_format(weight, format)) {
    steps.allocate(bytes_to_convolve(weight));
  }
  const ConvolvedLayer layer{
      input,
      weight,
      outputs * channels,
      channels,
      groups,
      are_all(arguments[3], 1) && are_all(arguments[5], 1),
      !are_all(arguments[4], 0)};
  steps.free(steps.allocate_optional(layer.workspace_bytes(Pass::Forward)));
  return steps;
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
Temporaries of_convolution_backward(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& gradient = arguments[0].toTensor();
  const auto &input = arguments[1].toTensor(), &weight = arguments[2].toTensor();
  const auto wanted = arguments[10].toBoolList();
  Temporaries steps;
  const bool counts = is_batch_of_images(input, weight) && gradient.numel() > 0 &&
      gradient.dim() == input.dim() && arguments[9].toInt() > 0;
  int64_t workspaces[] = {0, 0};
  if (counts) {
    const auto format = convolution_format(input, weight);
    if (wanted.get(1) && !has_format(input, format)) {
      steps.allocate(bytes_to_convolve(input));
    }
    if (!has_format(gradient, format)) {
      steps.allocate(bytes_to_convolve(gradient));
    }
    const ConvolvedLayer layer{
        input,
        weight,
        gradient.numel(),
        gradient.size(1),
        arguments[9].toInt(),
        are_all(arguments[4], 1) && are_all(arguments[6], 1),
        !are_all(arguments[5], 0)};
    workspaces[0] = layer.workspace_bytes(Pass::Data);
    workspaces[1] = layer.workspace_bytes(Pass::Weight);
  }
  for (const size_t pass : {0, 1}) {
    steps.results_follow();
    if (wanted.get(pass)) {
      steps.free(steps.allocate_optional(workspaces[pass]));
    }
  }
  steps.results_follow();
  if (wanted.get(2)) {
    c10::DimVector dims;
    for (int64_t i = 0; i < gradient.dim(); ++i) {
      if (i != 1) {
        dims.push_back(i);
      }
    }
    steps.append(sum_temporaries(gradient, dims, gradient.device().index()));
  }
  return steps;
}

} // namespace

TemporariesOf convolution_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"convolution", &of_convolution},
      {"convolution_backward", &of_convolution_backward},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
