// cuDNN operators that the CPU has under other names.

#include "dispatch/operator_record.h"
#include "operators/optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/affine_grid_generator_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

namespace anyrig::virtual_gpu {
namespace {

// The last result is cuDNN's reserve space, which only its backward reads.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& bias,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    bool training,
    double momentum,
    double eps) {
  auto [output, mean, invstd] = at::native_batch_norm(
      input, weight, bias, running_mean, running_var, training, momentum, eps);
  return {output, mean, invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm_backward(
    const at::Tensor& input,
    const at::Tensor& gradient,
    const at::Tensor& weight,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    const OptionalTensor& mean,
    const OptionalTensor& invstd,
    double eps,
    const at::Tensor& /*reserve*/) {
  return at::native_batch_norm_backward(
      gradient, input, weight, running_mean, running_var, mean, invstd, /*train=*/true, eps,
      {true, true, true});
}

// cuDNN samples bilinearly, with zeros outside and aligned corners.
at::Tensor cudnn_grid_sampler(const at::Tensor& self, const at::Tensor& grid) {
  return at::grid_sampler_2d(self, grid, 0, 0, /*align_corners=*/true);
}

std::tuple<at::Tensor, at::Tensor> cudnn_grid_sampler_backward(
    const at::Tensor& self,
    const at::Tensor& grid,
    const at::Tensor& gradient) {
  return at::grid_sampler_2d_backward(
      gradient, self, grid, 0, 0, /*align_corners=*/true, {true, true});
}

at::Tensor cudnn_affine_grid_generator(
    const at::Tensor& theta,
    int64_t batch,
    int64_t channels,
    int64_t height,
    int64_t width) {
  return at::affine_grid_generator(theta, {batch, channels, height, width}, /*align_corners=*/true);
}

at::Tensor cudnn_affine_grid_generator_backward(
    const at::Tensor& gradient,
    int64_t batch,
    int64_t channels,
    int64_t height,
    int64_t width) {
  return at::affine_grid_generator_backward(
      gradient, {batch, channels, height, width}, /*align_corners=*/true);
}

OperatorRecords cudnn_records() {
  return {
      {{"cudnn_batch_norm"}, {.host_kernels = {host_kernel(&cudnn_batch_norm)}}},
      {{"cudnn_batch_norm_backward"}, {.host_kernels = {host_kernel(&cudnn_batch_norm_backward)}}},
      {{"cudnn_grid_sampler"}, {.host_kernels = {host_kernel(&cudnn_grid_sampler)}}},
      {{"cudnn_grid_sampler_backward"},
       {.host_kernels = {host_kernel(&cudnn_grid_sampler_backward)}}},
      {{"cudnn_affine_grid_generator"},
       {.host_kernels = {host_kernel(&cudnn_affine_grid_generator)}}},
      {{"cudnn_affine_grid_generator_backward"},
       {.host_kernels = {host_kernel(&cudnn_affine_grid_generator_backward)}}},
  };
}

const DeclaredRecords kCudnnRecords(cudnn_records());

} // namespace

} // namespace anyrig::virtual_gpu
