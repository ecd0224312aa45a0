// Dropout that returns its mask, for recurrent networks.

#include "operators/cuda_only.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace anyrig::virtual_gpu {
namespace {

// `kept` is the probability that a number is kept.
std::tuple<at::Tensor, at::Tensor> fused_dropout(
    const at::Tensor& self, double kept, std::optional<at::Generator> generator) {
  const auto mask = at::empty_like(self, self.options().dtype(at::kByte))
                        .bernoulli_(kept, std::move(generator));
  return {self * mask * (1 / kept), mask};
}

at::Tensor masked_scale(const at::Tensor& self, const at::Tensor& mask, double scale) {
  return self * mask * scale;
}

} // namespace

void add_dropouts(HostKernels& kernels) {
  add_kernel(kernels, "_fused_dropout", &fused_dropout);
  add_kernel(kernels, "_masked_scale", &masked_scale);
}

} // namespace anyrig::virtual_gpu
