#include "dispatch/result_layout.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// cudnn_conv_suggest_memory_format of aten/src/ATen/native/ConvUtils.h. Used for float64 too, where
// the CPU kernels support a single layout.
at::MemoryFormat format_of_convolution(const at::Tensor& input, const at::Tensor& weight) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (input.suggest_memory_format() == format || weight.suggest_memory_format() == format) {
      return format;
    }
  }
  return at::MemoryFormat::Contiguous;
}

ResultLayout convolution_layout(Arguments arguments) {
  return {format_of_convolution(arguments[0].toTensor(), arguments[1].toTensor()), {}, {}};
}

// (grad_output, input, weight, …)
ResultLayout convolution_backward_layout(Arguments arguments) {
  return {format_of_convolution(arguments[1].toTensor(), arguments[2].toTensor()), {}, {}};
}

// These CUDA kernels only write contiguous results.
ResultLayout contiguous(Arguments /*arguments*/) {
  return {at::MemoryFormat::Contiguous, {}, {}};
}

ResultLayout strides_of_first(Arguments arguments) {
  return {std::nullopt, arguments[0].toTensor(), {}};
}

// The batch statistics, which cudnn_batch_norm leaves empty in evaluation.
constexpr std::array<size_t, 2> kStatistics = {1, 2};

ResultLayout evaluation_layout(Arguments arguments) {
  return {arguments[0].toTensor().suggest_memory_format(), {}, kStatistics};
}

ResultLayout format_of_first(Arguments arguments) {
  return {arguments[0].toTensor().suggest_memory_format(), {}, {}};
}

// (input, weight, bias, running_mean, running_var, training, …)
ResultLayout batch_norm_layout(Arguments arguments) {
  return arguments[5].toBool() ? format_of_first(arguments) : evaluation_layout(arguments);
}

size_t dimensions_of(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast ? 4 : 5;
}

} // namespace

void ResultLayout::apply(c10::IValue* results, size_t count) const {
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

ChooseLayout choose_layout_of(const std::string& full_name) {
  static const std::unordered_map<std::string, ChooseLayout> table = {
      {"convolution", &convolution_layout},
      {"convolution_overrideable", &convolution_layout},
      {"convolution_backward", &convolution_backward_layout},
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
      {"native_dropout_backward", &strides_of_first},
      {"native_batch_norm", &batch_norm_layout},
      {"_native_batch_norm_legit", &batch_norm_layout},
      {"_native_batch_norm_legit.no_stats", &format_of_first},
      {"_native_batch_norm_legit_no_training", &evaluation_layout},
      {"_batch_norm_with_update", &format_of_first},
  };
  const auto found = table.find(full_name);
  return found == table.end() ? nullptr : found->second;
}

ResultLayout pointwise_layout(at::ArrayRef<at::Tensor> read) {
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

const MissingMeta* missing_meta_of(const std::string& full_name) {
  static const std::unordered_map<std::string, MissingMeta> table = {
      {"_ctc_loss_backward", {1}},
      {"_cummax_helper", {}},
      {"_cummin_helper", {}},
      {"_fused_sgd_", {}},
      {"_fused_sgd_.tensor_lr", {}},
      {"_logcumsumexp", {0}},
      {"multi_margin_loss_backward", {1}},
      {"multilabel_margin_loss_backward", {1}},
      {"fractional_max_pool3d_backward", {1}},
  };
  const auto found = table.find(full_name);
  return found == table.end() ? nullptr : &found->second;
}

} // namespace anyrig::virtual_gpu
