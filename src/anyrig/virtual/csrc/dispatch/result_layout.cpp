#include "dispatch/card_results.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// cudnn_conv_suggest_memory_format of aten/src/ATen/native/ConvUtils.h. In float64, where the CPU's
// kernels know one layout only, that is taken over.
at::MemoryFormat format_of_convolution(const at::Tensor& input, const at::Tensor& weight) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (input.suggest_memory_format() == format || weight.suggest_memory_format() == format) {
      return format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

CardResults of_convolution(Arguments arguments) {
  return {format_of_convolution(arguments[0].toTensor(), arguments[1].toTensor()), {}, {}};
}

// (grad_output, input, weight, …)
CardResults of_convolution_backward(Arguments arguments) {
  return {format_of_convolution(arguments[1].toTensor(), arguments[2].toTensor()), {}, {}};
}

// Their CUDA kernels know no other layout.
CardResults contiguous(Arguments /*arguments*/) {
  return {at::MemoryFormat::Contiguous, {}, {}};
}

CardResults like_first(Arguments arguments) {
  return {std::nullopt, arguments[0].toTensor(), {}};
}

// The statistics of a batch, which evaluation has none of, as cudnn_batch_norm returns them.
constexpr std::array<size_t, 2> kStatistics = {1, 2};

CardResults of_evaluation(Arguments arguments) {
  return {arguments[0].toTensor().suggest_memory_format(), {}, kStatistics};
}

CardResults in_format_of_first(Arguments arguments) {
  return {arguments[0].toTensor().suggest_memory_format(), {}, {}};
}

// (input, weight, bias, running_mean, running_var, training, …)
CardResults of_batch_norm(Arguments arguments) {
  return arguments[5].toBool() ? in_format_of_first(arguments) : of_evaluation(arguments);
}

size_t dimensions_of(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast ? 4 : 5;
}

} // namespace

void CardResults::put_right(c10::IValue* results, size_t count) const {
  if (!format.has_value() && !like.defined() && empty.empty()) {
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined()) {
      continue;
    }
    const at::Tensor& result = results[i].toTensor();
    if (format.has_value() &&
        (*format == at::MemoryFormat::Contiguous ||
         static_cast<size_t>(result.dim()) == dimensions_of(*format))) {
      results[i] = result.contiguous(*format);
    } else if (
        like.defined() && result.is_meta() && result.sizes() == like.sizes() &&
        like.is_non_overlapping_and_dense()) {
      result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
    }
  }
  for (const size_t i : empty) {
    if (results[i].toTensor().numel() != 0) {
      results[i] = at::empty({0}, results[i].toTensor().options());
    }
  }
}

ResultsOnCard results_on_card(const std::string& full_name) {
  static const std::unordered_map<std::string, ResultsOnCard> table = {
      {"convolution", &of_convolution},
      {"convolution_overrideable", &of_convolution},
      {"convolution_backward", &of_convolution_backward},
      {"reflection_pad2d", &contiguous},
      {"reflection_pad2d_backward", &contiguous},
      {"reflection_pad3d", &contiguous},
      {"reflection_pad3d_backward", &contiguous},
      {"replication_pad2d", &contiguous},
      {"replication_pad2d_backward", &contiguous},
      {"replication_pad3d", &contiguous},
      {"replication_pad3d_backward", &contiguous},
      {"max_unpool2d", &contiguous},
      {"max_unpool3d", &contiguous},
      {"_softmax_backward_data", &contiguous},
      {"_log_softmax_backward_data", &contiguous},
      {"glu_backward", &contiguous},
      {"mse_loss_backward", &contiguous},
      {"native_dropout_backward", &like_first},
      {"native_batch_norm", &of_batch_norm},
      {"_native_batch_norm_legit", &of_batch_norm},
      {"_native_batch_norm_legit.no_stats", &in_format_of_first},
      {"_native_batch_norm_legit_no_training", &of_evaluation},
      {"_batch_norm_with_update", &in_format_of_first},
  };
  const auto found = table.find(full_name);
  return found == table.end() ? nullptr : found->second;
}

CardResults pointwise_results(at::ArrayRef<at::Tensor> read) {
  const bool all_contiguous = std::all_of(
      read.begin(), read.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  if (all_contiguous) {
    return {};
  }
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::kBool, at::kMeta)
      .add_owned_output(at::Tensor());
  for (const at::Tensor& tensor : read) {
    config.add_owned_const_input(tensor);
  }
  return {std::nullopt, config.build().output(), {}};
}

const WithoutMeta* without_meta(const std::string& full_name) {
  static const std::unordered_map<std::string, WithoutMeta> table = {
      {"_cummax_helper", {}},
      {"_cummin_helper", {}},
      {"_logcumsumexp", {0}},
      {"multi_margin_loss_backward", {1}},
      {"multilabel_margin_loss_backward", {1}},
      {"fractional_max_pool3d_backward", {1}},
  };
  const auto found = table.find(full_name);
  return found == table.end() ? nullptr : &found->second;
}

} // namespace anyrig::virtual_gpu
