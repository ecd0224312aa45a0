// Convolution operators named for a CUDA library or a special case.

#include "operators/cuda_only.h"
#include "operators/optional_tensor.h"

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

} // namespace

void add_convolutions(HostKernels& kernels) {
  add_kernel(kernels, "cudnn_convolution", &cudnn_convolution);
  add_kernel(kernels, "cudnn_convolution_transpose", &cudnn_convolution_transpose);
  add_kernel(kernels, "cudnn_convolution_relu", &cudnn_convolution_relu);
  add_kernel(kernels, "cudnn_convolution_add_relu", &cudnn_convolution_add_relu);
  add_kernel(kernels, "_conv_depthwise2d", &conv_depthwise);
  add_kernel(kernels, "conv_depthwise3d", &conv_depthwise);
}

} // namespace anyrig::virtual_gpu
