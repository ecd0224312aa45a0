// Operators on lists of tensors that support more dtypes on CUDA than on the CPU.

#include "dispatch/operator_record.h"

#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {
namespace {

bool is_of_truths(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool;
}

// A bool is its own absolute value: aten/src/ATen/native/cuda/ForeachUnaryOp.cu.
std::vector<at::Tensor> absolute_values(at::TensorList tensors) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(is_of_truths(tensor) ? tensor.clone() : tensor.abs());
  }
  return results;
}

void make_absolute(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!is_of_truths(tensor)) {
      tensor.abs_();
    }
  }
}

OperatorRecords list_records() {
  return {
      {{"_foreach_abs"}, {.host_kernels = {host_kernel(&absolute_values)}}},
      {{"_foreach_abs_"}, {.host_kernels = {host_kernel(&make_absolute)}}},
      {{"_fused_sgd_"}, {.missing_meta = MissingMeta{}}},
  };
}

const DeclaredRecords kListRecords(list_records());

} // namespace

} // namespace anyrig::virtual_gpu
