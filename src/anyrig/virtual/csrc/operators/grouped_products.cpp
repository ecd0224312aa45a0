#include "operators/grouped_products.h"

#include "dispatch/operator_record.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// Returns an empty tensor whose rows begin at multiples of 16 bytes:
// create_grouped_gemm_output_tensor of aten/src/ATen/native/GroupedMMUtils.h.
at::Tensor padded(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto step = static_cast<int64_t>(16 / options.dtype().itemsize());
  const int64_t row = (sizes.back() + step - 1) / step * step;
  return sizes.size() == 2 ? at::empty_strided(sizes, {row, 1}, options)
                           : at::empty_strided(sizes, {sizes[1] * row, row, 1}, options);
}

void check_groups_of_matrices(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const OptionalTensor& offs,
    const OptionalTensor& bias,
    std::optional<at::ScalarType> out_dtype) {
  const auto check_dtype = [](const at::Tensor& matrix, const char* name) {
    const auto dtype = matrix.scalar_type();
    TORCH_CHECK(
        dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kHalf, "Expected ", name,
        " to be Float32, BFloat16 or Float16 matrix, got ", dtype);
  };
  check_dtype(self, "mat_a");
  check_dtype(mat2, "mat_b");
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(mat2.dim() == 2 || mat2.dim() == 3, "mat_b has to be 2 or 3d");
  const bool has_parts = self.dim() == 2 || mat2.dim() == 2;
  TORCH_CHECK(
      (self.dim() == 2 && mat2.dim() == 2) || self.size(-1) == mat2.size(-2),
      "contraction dimension of mat_a and mat_b must match");
  is_transposed(self);
  is_transposed(mat2);
  TORCH_CHECK(
      is_given(offs) == has_parts,
      "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  if (has_parts) {
    TORCH_CHECK(offs->dim() == 1, "offs has to be 1D");
    TORCH_CHECK(offs->scalar_type() == at::kInt, "Offsets have to be int32");
  }
  TORCH_CHECK(!is_given(bias), "Bias not supported yet");
  TORCH_CHECK(
      out_dtype.value_or(self.scalar_type()) == self.scalar_type(),
      "Grouped gemm output dtype must match `mat_a` dtype");
}

// Replaces the Meta kernel, which supports bfloat16 only and, without CUDA, does not pad.
at::Tensor grouped_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const OptionalTensor& offs,
    const OptionalTensor& bias,
    std::optional<at::ScalarType> out_dtype) {
  if (!self.is_meta()) {
    return at::_grouped_mm(self, mat2, offs, bias, out_dtype);
  }
  check_groups_of_matrices(self, mat2, offs, bias, out_dtype);
  return empty_for_groups(self, mat2, offs, self.scalar_type());
}

} // namespace

at::Tensor empty_for_groups(
    const at::Tensor& a,
    const at::Tensor& b,
    const OptionalTensor& offs,
    at::ScalarType dtype) {
  const bool parts_a = a.dim() == 2;
  const bool parts_b = b.dim() == 2;
  const auto options = a.options().dtype(dtype);
  const int64_t rows = a.size(-2);
  const int64_t columns = b.size(-1);
  if (parts_a != parts_b) {
    TORCH_CHECK(offs->size(0) == (parts_a ? b : a).size(0), "matrix batch sizes have to match");
    return padded({rows, columns}, options);
  }
  TORCH_CHECK(parts_a || a.size(0) == b.size(0), "batched dimension has to match");
  return padded({parts_a ? offs->size(0) : a.size(0), rows, columns}, options);
}

bool is_transposed(const at::Tensor& matrix) {
  const int64_t step = 16 / matrix.element_size();
  const auto follows = [&matrix, step](int64_t along, int64_t across) {
    if (matrix.stride(along) != 1 ||
        matrix.stride(across) < std::max<int64_t>(1, matrix.size(along))) {
      return false;
    }
    TORCH_CHECK(matrix.stride(across) % step == 0, "strides should be multiple of 16 bytes");
    return true;
  };
  if (follows(-2, -1)) {
    return true;
  }
  TORCH_CHECK(
      follows(-1, -2), "Invalid strides/sizes, got ", matrix.strides(), " for strides and ",
      matrix.sizes(), " for sizes");
  return false;
}

namespace {

OperatorRecords grouped_product_records() {
  return {
      {{"_grouped_mm"}, {.host_kernels = {host_kernel(&grouped_mm)}}},
  };
}

const DeclaredRecords kGroupedProductRecords(grouped_product_records());

} // namespace

} // namespace anyrig::virtual_gpu
