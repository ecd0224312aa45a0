// Operators on lists of tensors that support more dtypes on CUDA than on the CPU.

#include "operators/cuda_only.h"

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

} // namespace

void add_lists(HostKernels& kernels) {
  add_kernel(kernels, "_foreach_abs", &absolute_values);
  add_kernel(kernels, "_foreach_abs_", &make_absolute);
}

} // namespace anyrig::virtual_gpu
