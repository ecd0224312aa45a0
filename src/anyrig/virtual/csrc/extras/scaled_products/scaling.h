// 8-bit and 4-bit floats, and the scales that multiply them.
#pragma once

#include <ATen/BlasBackend.h>
#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {

using at::blas::ScalingType;
using at::blas::SwizzleType;

// Returns whether the matrix stores two 4-bit floats in a byte, along the dimension that a product
// sums over.
inline bool is_of_four_bits(const at::Tensor& matrix) {
  return matrix.scalar_type() == at::kFloat4_e2m1fn_x2;
}

inline bool is_of_eight_bits(const at::Tensor& matrix) {
  return at::isFloat8Type(matrix.scalar_type());
}

inline int64_t numbers_of_row(const at::Tensor& matrix) {
  return matrix.size(1) * (is_of_four_bits(matrix) ? 2 : 1);
}

// Returns whether a scale applies to 16 or 32 numbers of a row. Such scales are stored in tiles of
// 128 rows by 4 columns; each tile is 32 rows of four groups of four scales.
bool is_swizzled(ScalingType scaling);
int64_t count_swizzled(int64_t rows, int64_t numbers, ScalingType scaling);

// Returns an operand's rows times their scales, in float32. For scales of 128-number blocks,
// `scale` has a row for each row or for each block of rows, and a column for each block of a row.
at::Tensor scaled_numbers(const at::Tensor& rows, const at::Tensor& scale, ScalingType scaling);

} // namespace anyrig::virtual_gpu
