// The temporaries of convolutions: copies of operands in another memory format, a workspace of cuDNN
// for each pass, and the sum that gives a bias gradient. aten/src/ATen/native/Convolution.cpp and
// {ConvShared,Conv_v8}.cpp in aten/src/ATen/native/cudnn.
//
//   forward:   copy of the input │ output │ copy of the weight, workspace
//   backward:  copies │ input gradient │ workspace │ weight gradient │ workspace │ bias gradient │ sum
//
// The size of a workspace is known to cuDNN alone, which chooses among many algorithms. Assumed:
//
//   matrix units, NCHW    copies of all operands in NHWC, whose channels are padded to 16 bytes: such
//                         kernels read and write NHWC
//   3×3 with stride 1     Winograd's transformed filters, 16 numbers for each pair of channels, as
//                         LBANN/lbann pull request 437 reports (256 KiB for 64 by 64 channels)
//   all others            nothing, as for channels-last tensors and depthwise convolutions
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

// A convolution, as far as its workspaces depend on it.
struct ConvolvedLayer {
  const at::Tensor& input;
  const at::Tensor& weight;
  int64_t output_elements;
  int64_t output_channels;
  int64_t groups;
  bool is_dense; // stride and dilation are 1

  bool is_depthwise() const {
    return groups > 1 && input.size(1) == groups;
  }

  bool uses_matrix_units() const {
    const auto precision = precision_of(input.scalar_type(), Family::Convolution);
    return devices()[input.device().index()].gpu.uses_matrix_units(precision);
  }

  int64_t padded_bytes(int64_t elements, int64_t channels) const {
    constexpr int64_t kAlignment = 16;
    const auto bytes = static_cast<int64_t>(input.element_size());
    const int64_t step = std::max<int64_t>(1, kAlignment / bytes);
    const int64_t of_group = channels / groups;
    return of_group == 0 ? 0 : elements / of_group * ((of_group + step - 1) / step * step) * bytes;
  }

  int64_t workspace_bytes() const {
    if (is_depthwise() || convolution_format(input, weight) != at::MemoryFormat::Contiguous) {
      return 0;
    }
    if (uses_matrix_units()) {
      return padded_bytes(input.numel(), input.size(1)) +
          padded_bytes(output_elements, output_channels) +
          padded_bytes(weight.numel(), weight.size(1) * groups);
    }
    const bool is_three = weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3;
    const bool is_single = input.scalar_type() == at::kFloat;
    return is_three && is_single && is_dense && groups == 1
        ? 16 * weight.size(0) * weight.size(1) * bytes_per_element()
        : 0;
  }

  int64_t bytes_per_element() const {
    return static_cast<int64_t>(input.element_size());
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
      input, weight, outputs * channels, channels, groups,
      are_all(arguments[3], 1) && are_all(arguments[5], 1)};
  steps.free(steps.allocate(layer.workspace_bytes()));
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
  int64_t workspace = 0;
  if (counts) {
    const auto format = convolution_format(input, weight);
    if (wanted.get(1) && !has_format(input, format)) {
      steps.allocate(bytes_to_convolve(input));
    }
    if (!has_format(gradient, format)) {
      steps.allocate(bytes_to_convolve(gradient));
    }
    workspace = ConvolvedLayer{
        input, weight, gradient.numel(), gradient.size(1), arguments[9].toInt(),
        are_all(arguments[4], 1) && are_all(arguments[6], 1)}
                    .workspace_bytes();
  }
  for (const size_t pass : {0, 1}) {
    steps.results_follow();
    if (wanted.get(pass)) {
      steps.free(steps.allocate(workspace));
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
