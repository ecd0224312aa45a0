// Normalizations and softmax, with kernels for the steps of synchronized batch normalization, fused
// RMS normalization, and softmax from half to float. The results and their dtypes follow
// aten/src/ATen/native/cuda/{Normalization.cuh,layer_norm_kernel.cu,SoftMax.cu}.

#include "dispatch/operand_checks.h"
#include "dispatch/operator_record.h"
#include "operators/optional_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>

#include <array>
#include <limits>

namespace anyrig::virtual_gpu {
namespace {

// Converts to the dtype in which CUDA computes statistics: float, or double for double.
at::Tensor widen(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// Returns all dimensions except the channel dimension.
std::vector<int64_t> dimensions_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dimensions;
  for (int64_t i = 0; i < input.dim(); ++i) {
    if (i != 1) {
      dimensions.push_back(i);
    }
  }
  return dimensions;
}

// Reshapes one value for each channel so that it broadcasts over `input`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return values.view(shape);
}

std::tuple<at::Tensor, at::Tensor> statistics(const at::Tensor& input, double eps) {
  const auto [variance, mean] =
      at::var_mean(widen(input), dimensions_but_channels(input), /*correction=*/at::Scalar(0));
  return {mean, at::rsqrt(variance + eps)};
}

at::Tensor normalize(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    double /*eps*/) {
  auto result = (widen(input) - per_channel(mean, input)) * per_channel(invstd, input);
  if (is_given(weight)) {
    result = result * per_channel(*weight, input);
  }
  if (is_given(bias)) {
    result = result + per_channel(*bias, input);
  }
  return result.to(input.scalar_type());
}

at::Tensor& normalize_out(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    double eps,
    at::Tensor& out) {
  out.resize_(input.sizes());
  return out.copy_(normalize(input, weight, bias, mean, invstd, eps));
}

// Combines the statistics of each rank, one row for each, to those of all ranks.
std::tuple<at::Tensor, at::Tensor> gather_stats_with_counts(
    const at::Tensor& /*input*/,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    double momentum,
    double eps,
    const at::Tensor& counts) {
  const auto weights = counts.to(mean.scalar_type()).view({-1, 1});
  const auto total = weights.sum();
  const auto mean_of_all = (mean * weights).sum(0) / total;
  const auto variance = invstd.pow(-2) - eps;
  const auto squares = ((variance + (mean - mean_of_all).pow(2)) * weights).sum(0);
  if (is_given(running_mean)) {
    running_mean->mul_(1 - momentum).add_(momentum * mean_of_all);
  }
  if (is_given(running_var)) {
    running_var->mul_(1 - momentum).add_(momentum * squares / (total - 1));
  }
  return {mean_of_all, at::rsqrt(squares / total + eps)};
}

std::tuple<at::Tensor, at::Tensor> gather_stats(
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    double momentum,
    double eps,
    int64_t count) {
  const auto counts = at::ones_like(mean.select(1, 0)) * static_cast<double>(count);
  return gather_stats_with_counts(
      input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> reduce_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    bool input_wanted,
    bool weight_wanted,
    bool bias_wanted) {
  const auto dimensions = dimensions_but_channels(input);
  const auto wide = widen(gradient);
  const auto sum = wide.sum(dimensions);
  const auto product = (wide * (widen(input) - per_channel(mean, input))).sum(dimensions);
  const auto dtype = is_given(weight) ? weight->scalar_type() : input.scalar_type();
  return {
      input_wanted ? sum : at::Tensor(), input_wanted ? product : at::Tensor(),
      weight_wanted ? (product * invstd).to(dtype) : at::Tensor(),
      bias_wanted ? sum.to(dtype, /*non_blocking=*/false, /*copy=*/true) : at::Tensor()};
}

at::Tensor normalize_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    const at::Tensor& sum,
    const at::Tensor& product,
    const at::Tensor& count) {
  const auto total = count.sum();
  const auto slope = per_channel(invstd.pow(2) * product / total, input);
  auto result = widen(gradient) - per_channel(sum / total, input) -
      (widen(input) - per_channel(mean, input)) * slope;
  result = result * per_channel(invstd, input);
  if (is_given(weight)) {
    result = result * per_channel(*weight, input);
  }
  return result.to(input.scalar_type());
}

std::vector<int64_t> last_dimensions(size_t count) {
  std::vector<int64_t> dimensions;
  for (size_t i = 1; i <= count; ++i) {
    dimensions.push_back(-static_cast<int64_t>(i));
  }
  return dimensions;
}

double default_eps(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const OptionalTensor& weight,
    std::optional<double> eps) {
  const auto wide = widen(input);
  const auto squares = wide.pow(2).mean(last_dimensions(normalized_shape.size()), /*keepdim=*/true);
  const auto rstd = at::rsqrt(squares + eps.value_or(default_eps(input.scalar_type())));
  auto result = wide * rstd;
  if (is_given(weight)) {
    result = result * *weight;
  }
  return {result.to(input.scalar_type()).contiguous(), rstd};
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const at::Tensor& rstd,
    const OptionalTensor& weight,
    std::array<bool, 2> wanted) {
  const auto normalized = widen(input) * rstd;
  const auto wide = widen(gradient);
  at::Tensor of_input;
  at::Tensor of_weight;
  if (wanted[0]) {
    const auto scaled = is_given(weight) ? wide * *weight : wide;
    const auto mean =
        (scaled * normalized).mean(last_dimensions(normalized_shape.size()), /*keepdim=*/true);
    of_input = ((scaled - normalized * mean) * rstd).to(input.scalar_type()).contiguous();
  }
  if (wanted[1] && is_given(weight)) {
    of_weight = (wide * normalized).sum_to_size(weight->sizes()).to(weight->scalar_type());
  }
  return {of_input, of_weight};
}

// Autocast and `dtype=torch.float32` request this conversion from CUDA; the CPU kernel refuses it.
template <at::Tensor (*kSoftmax)(const at::Tensor&, int64_t, bool)>
at::Tensor softmax(const at::Tensor& input, int64_t dimension, bool half_to_float) {
  TORCH_CHECK(
      !half_to_float || input.scalar_type() == at::kHalf,
      "conversion is supported for Half type only");
  return kSoftmax(half_to_float ? input.to(at::kFloat) : input, dimension, false);
}

template <at::Tensor (*kBackward)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType)>
at::Tensor softmax_backward(
    const at::Tensor& gradient,
    const at::Tensor& output,
    int64_t dimension,
    at::ScalarType input_dtype) {
  const at::ScalarType wide = gradient.scalar_type();
  if (wide != at::kFloat || input_dtype != at::kHalf) {
    return kBackward(gradient, output, dimension, input_dtype);
  }
  return kBackward(gradient, output, dimension, wide).to(input_dtype);
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

OperatorRecords normalization_records() {
  return {
      {{"native_group_norm"},
       {.kernel = "GroupNormKernelImpl",
        .refused = kAllButFloats,
        .dtype_rules = {same_dtype(1, 0, kFound), same_dtype(2, 0, kFound)}}},
      {{"native_layer_norm"},
       {.kernel = "LayerNormKernelImpl",
        .refused = kAllButFloats,
        .dtype_rules = {same_dtype(2, 0, kFound), same_dtype(3, 0, kFound)},
        .nested = NestedKernel::WrittenHere}},
      {{"native_layer_norm_backward"}, {.nested = NestedKernel::WrittenHere}},
      {{"native_batch_norm"},
       {.kernel = "batch_norm_stats_cuda",
        .refused = kAllButFloats,
        .choose_layout = batch_norm_layout}},
      {{"_native_batch_norm_legit"}, {.choose_layout = batch_norm_layout}},
      {{"_native_batch_norm_legit.no_stats", "_batch_norm_with_update"},
       {.choose_layout = format_of_first}},
      {{"_native_batch_norm_legit_no_training"}, {.choose_layout = evaluation_layout}},
      {{"_softmax"},
       {.kernel = "host_softmax",
        .refused = kAllButFloats,
        .check_arguments = check_dimension,
        .host_kernels = {host_kernel(&softmax<&at::_softmax>)}}},
      {{"_log_softmax"},
       {.kernel = "host_softmax",
        .refused = kAllButFloats,
        .check_arguments = check_dimension,
        .host_kernels = {host_kernel(&softmax<&at::_log_softmax>)}}},
      {{"_softmax_backward_data"},
       {.host_kernels = {host_kernel(&softmax_backward<&at::_softmax_backward_data>)},
        .choose_layout = contiguous_layout}},
      {{"_log_softmax_backward_data"},
       {.host_kernels = {host_kernel(&softmax_backward<&at::_log_softmax_backward_data>)},
        .choose_layout = contiguous_layout}},
      {{"batch_norm_stats"}, {.host_kernels = {host_kernel(&statistics)}}},
      {{"batch_norm_elemt"},
       {.host_kernels = {host_kernel(&normalize), host_kernel(&normalize_out, "out")}}},
      {{"batch_norm_gather_stats"}, {.host_kernels = {host_kernel(&gather_stats)}}},
      {{"batch_norm_gather_stats_with_counts"},
       {.host_kernels = {host_kernel(&gather_stats_with_counts)}}},
      {{"batch_norm_backward_reduce"}, {.host_kernels = {host_kernel(&reduce_backward)}}},
      {{"batch_norm_backward_elemt"},
       {.dtype_rules = {dtype_in(7, {at::kInt}, "expected scalar type Int but found {1}")},
        .host_kernels = {host_kernel(&normalize_backward)}}},
      {{"_fused_rms_norm"},
       {.dtype_rules = {same_dtype(2, 0, kFound)}, .host_kernels = {host_kernel(&fused_rms_norm)}}},
      {{"_fused_rms_norm_backward"},
       {.dtype_rules = {same_dtype(4, 1, kFound)},
        .host_kernels = {host_kernel(&fused_rms_norm_backward)}}},
  };
}

const DeclaredRecords kNormalizationRecords(normalization_records());

} // namespace

} // namespace anyrig::virtual_gpu
