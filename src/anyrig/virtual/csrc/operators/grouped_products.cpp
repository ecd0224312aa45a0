#include "operators/cuda_only.h"
#include "operators/optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty_strided.h>

namespace anyrig::virtual_gpu {
namespace {

// Of rows that begin at multiples of 16 bytes: create_grouped_gemm_output_tensor of
// aten/src/ATen/native/GroupedMMUtils.h.
at::Tensor padded(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto step = static_cast<int64_t>(16 / options.dtype().itemsize());
  const int64_t row = (sizes.back() + step - 1) / step * step;
  return sizes.size() == 2
      ? at::empty_strided(sizes, {row, 1}, options)
      : at::empty_strided(sizes, {sizes[1] * row, row, 1}, options);
}

// Meta's kernel takes bfloat16 alone, and knows no padding in a PyTorch without CUDA.
at::Tensor grouped_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const OptionalTensor& offs,
    const OptionalTensor& bias,
    std::optional<at::ScalarType> out_dtype) {
  if (!self.is_meta()) {
    return at::_grouped_mm(self, mat2, offs, bias, out_dtype);
  }
  const bool parts_a = self.dim() == 2;
  const bool parts_b = mat2.dim() == 2;
  TORCH_CHECK(
      is_given(offs) == (parts_a || parts_b),
      "Have to provide offsets for 2d matrix, and no offsets for 3d ones");
  TORCH_CHECK(
      self.size(-1) == mat2.size(-2), "contraction dimension of mat_a and mat_b must match");
  const int64_t rows = self.size(-2);
  const int64_t columns = mat2.size(-1);
  const auto options = self.options().dtype(out_dtype.value_or(self.scalar_type()));
  if (parts_a != parts_b) {
    TORCH_CHECK(
        offs->size(0) == (parts_a ? mat2 : self).size(0), "matrix batch sizes have to match");
    return padded({rows, columns}, options);
  }
  return padded({parts_a ? offs->size(0) : self.size(0), rows, columns}, options);
}

} // namespace

void add_grouped_products(HostKernels& kernels) {
  add_kernel(kernels, "_grouped_mm", &grouped_mm);
}

} // namespace anyrig::virtual_gpu
