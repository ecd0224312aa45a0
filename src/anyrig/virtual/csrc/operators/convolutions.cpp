// Convolutions, with kernels for those named for a CUDA library or a special case.

#include "dispatch/operator_record.h"
#include "operators/optional_tensor.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>

namespace anyrig::virtual_gpu {
namespace {

at::Tensor convolve(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    int64_t groups) {
  const std::vector<int64_t> none(stride.size(), 0);
  return at::convolution(
      input, weight, bias, stride, padding, dilation, /*transposed=*/false, none, groups);
}

at::Tensor cudnn_convolution(
    const at::Tensor& self,
    const at::Tensor& weight,
    at::IntArrayRef padding,
    at::IntArrayRef stride,
    at::IntArrayRef dilation,
    int64_t groups,
    bool /*benchmark*/,
    bool /*deterministic*/,
    bool /*allow_tf32*/) {
  return convolve(self, weight, {}, stride, padding, dilation, groups);
}

at::Tensor cudnn_convolution_transpose(
    const at::Tensor& self,
    const at::Tensor& weight,
    at::IntArrayRef padding,
    at::IntArrayRef output_padding,
    at::IntArrayRef stride,
    at::IntArrayRef dilation,
    int64_t groups,
    bool /*benchmark*/,
    bool /*deterministic*/,
    bool /*allow_tf32*/) {
  return at::convolution(
      self, weight, {}, stride, padding, dilation, /*transposed=*/true, output_padding, groups);
}

at::Tensor cudnn_convolution_relu(
    const at::Tensor& self,
    const at::Tensor& weight,
    const OptionalTensor& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    int64_t groups) {
  return convolve(self, weight, bias, stride, padding, dilation, groups).relu_();
}

at::Tensor cudnn_convolution_add_relu(
    const at::Tensor& self,
    const at::Tensor& weight,
    const at::Tensor& z,
    const std::optional<at::Scalar>& alpha,
    const OptionalTensor& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    int64_t groups) {
  const auto result = convolve(self, weight, bias, stride, padding, dilation, groups);
  return result.add(z, alpha.value_or(1)).relu_();
}

at::Tensor conv_depthwise(
    const at::Tensor& self,
    const at::Tensor& weight,
    at::IntArrayRef /*kernel_size*/,
    const OptionalTensor& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation) {
  return convolve(self, weight, bias, stride, padding, dilation, /*groups=*/self.size(1));
}

// CUDA's slow_conv_transpose2d and slow_conv_transpose3d, which run where cuDNN does not.
void check_output_padding(Arguments arguments) {
  auto stride = arguments[3].toIntVector();
  auto dilation = arguments[5].toIntVector();
  auto padding = arguments[7].toIntVector();
  const size_t dimensions = static_cast<size_t>(arguments[0].toTensor().dim()) - 2;
  const auto spread = [&](std::vector<int64_t>& numbers, int64_t for_height) {
    numbers.resize(dimensions, numbers.empty() ? for_height : numbers[0]);
    if (dimensions == 1) {
      numbers.insert(numbers.begin(), for_height); // 1d is computed as an image of height 1
    }
  };
  spread(stride, 1);
  spread(dilation, 1);
  spread(padding, 0);
  bool fits = true;
  for (size_t i = 0; i < padding.size(); ++i) {
    fits = fits && (padding[i] < stride[i] || padding[i] < dilation[i]);
  }
  if (fits) {
    return;
  }
  static const char* const kNames[] = {"depth", "height", "width"};
  std::string text = "output padding must be smaller than either stride or dilation, but got";
  const auto append = [&](const char* what, const std::vector<int64_t>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      text += c10::str(' ', what, '_', kNames[3 - numbers.size() + i], ": ", numbers[i]);
    }
  };
  append("output_padding", padding);
  append("stride", stride);
  append("dilation", dilation);
  TORCH_CHECK(false, text);
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
// check_shape_forward of aten/src/ATen/native/Convolution.cpp
void check_convolution(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const auto* bias = arguments[2].isTensor() && arguments[2].toTensor().defined()
      ? &arguments[2].toTensor()
      : nullptr;
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  if (input.dim() != weight.dim() || input.dim() < 3) {
    return; // every backend refuses it
  }
  const auto none_below = [&arguments](size_t i, int64_t least) {
    const auto numbers = arguments[i].toIntVector();
    return std::all_of(
        numbers.begin(), numbers.end(), [least](int64_t number) { return number >= least; });
  };
  TORCH_CHECK(none_below(4, 0), "negative padding is not supported");
  TORCH_CHECK(none_below(7, 0), "negative output_padding is not supported");
  TORCH_CHECK(none_below(3, 1), "non-positive stride is not supported");
  TORCH_CHECK(none_below(5, 1), "dilation should be greater than zero");
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(
      weight.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ",
      groups, " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK(
      weight.size(0) % groups == 0, "Given groups=", groups,
      ", expected weight to be divisible by ", groups, " at dimension 0, but got weight of size [",
      weight.sizes(), "] instead");
  TORCH_CHECK(
      transposed || input.size(1) == weight.size(1) * groups, "Given groups=", groups,
      ", weight of size ", weight.sizes(), ", expected input", input.sizes(), " to have ",
      weight.size(1) * groups, " channels, but got ", input.size(1), " channels instead");
  TORCH_CHECK(
      !transposed || input.size(1) == weight.size(0), "Given transposed=", transposed,
      ", weight of size ", weight.sizes(), ", expected input", input.sizes(), " to have ",
      weight.size(0), " channels, but got ", input.size(1), " channels instead");
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  TORCH_CHECK(
      bias == nullptr || (bias->dim() == 1 && bias->size(0) == outputs), "Given ",
      transposed ? "transposed=1, " : "", "weight of size ", weight.sizes(),
      ", expected bias to be 1-dimensional with ", outputs, " elements, but got bias of size ",
      bias->sizes(), " instead");
  if (transposed) {
    check_output_padding(arguments);
  }
}

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

// cuDNN has names for some integers but no algorithms. Without cuDNN, PyTorch's own kernel refuses.
void check_convolved_dtype(Arguments arguments, c10::Device /*device*/) {
  const at::Tensor& input = arguments[0].toTensor();
  const auto dtype = input.scalar_type();
  if (!at::isIntegralType(dtype, /*includeBool=*/true) || input.numel() == 0) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      at::globalContext().userEnabledCuDNN(), "\"slow_conv2d_cuda\" not implemented for '", dtype,
      "'");
  TORCH_CHECK(
      dtype == at::kByte || dtype == at::kChar || dtype == at::kInt,
      "getCudnnDataTypeFromScalarType() not supported for ", dtype);
  TORCH_CHECK(
      false, at::globalContext().benchmarkCuDNN() ? "FIND" : "GET",
      " was unable to find an engine to execute this computation");
}

OperatorRecords convolution_records() {
  return {
      {{"convolution", "_convolution"},
       {.check_arguments = check_convolution,
        .check_limits = check_convolved_dtype,
        .device_check = DeviceCheck::Convolution,
        .composed_overload = "",
        .widened = kComplexHalf,
        .choose_layout = convolution_layout}},
      {{"convolution_overrideable"},
       {.composed_overload = "", .choose_layout = convolution_layout}},
      {{"convolution_backward"},
       {.widened = kComplexHalf, .choose_layout = convolution_backward_layout}},
      {{"cudnn_convolution"}, {.host_kernels = {host_kernel(&cudnn_convolution)}}},
      {{"cudnn_convolution_transpose"},
       {.host_kernels = {host_kernel(&cudnn_convolution_transpose)}}},
      {{"cudnn_convolution_relu"}, {.host_kernels = {host_kernel(&cudnn_convolution_relu)}}},
      {{"cudnn_convolution_add_relu"},
       {.host_kernels = {host_kernel(&cudnn_convolution_add_relu)}}},
      {{"_conv_depthwise2d", "conv_depthwise3d"}, {.host_kernels = {host_kernel(&conv_depthwise)}}},
  };
}

const DeclaredRecords kConvolutionRecords(convolution_records());

} // namespace

} // namespace anyrig::virtual_gpu
