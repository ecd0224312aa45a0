// Dropout that returns its mask, for recurrent networks.

#include "dispatch/operator_record.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace anyrig::virtual_gpu {
namespace {

// `kept` is the probability that a number is kept.
std::tuple<at::Tensor, at::Tensor> fused_dropout(
    const at::Tensor& self,
    double kept,
    std::optional<at::Generator> generator) {
  const auto mask =
      at::empty_like(self, self.options().dtype(at::kByte)).bernoulli_(kept, std::move(generator));
  return {self * mask * (1 / kept), mask};
}

at::Tensor masked_scale(const at::Tensor& self, const at::Tensor& mask, double scale) {
  return self * mask * scale;
}

OperatorRecords dropout_records() {
  return {
      {{"native_dropout"}, {.kernel = "fused_dropout", .refused = kAllButFloats}},
      {{"native_dropout_backward"},
       {.kernel = "masked_scale", .refused = kIntegral, .choose_layout = strides_of_first}},
      {{"_fused_dropout"}, {.host_kernels = {host_kernel(&fused_dropout)}}},
      {{"_masked_scale"}, {.host_kernels = {host_kernel(&masked_scale)}}},
  };
}

const DeclaredRecords kDropoutRecords(dropout_records());

} // namespace

} // namespace anyrig::virtual_gpu
