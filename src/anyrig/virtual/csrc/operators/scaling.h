// Narrow floats, of eight or four bits, and the scales that say how large they are.
#pragma once

#include <ATen/BlasBackend.h>
#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {

using at::blas::ScalingType;
using at::blas::SwizzleType;

// Two to a byte, along the dimension that a product sums over.
inline bool is_of_four_bits(const at::Tensor& matrix) {
  return matrix.scalar_type() == at::kFloat4_e2m1fn_x2;
}

inline bool is_of_eight_bits(const at::Tensor& matrix) {
  return at::isFloat8Type(matrix.scalar_type());
}

inline int64_t numbers_of_row(const at::Tensor& matrix) {
  return matrix.size(1) * (is_of_four_bits(matrix) ? 2 : 1);
}

// Whether each 16 or 32 numbers of a row have a scale. Such scales are kept in tiles of 128 rows by
// four, of which each is 32 rows of four times four.
bool is_swizzled(ScalingType scaling);
int64_t count_swizzled(int64_t rows, int64_t numbers, ScalingType scaling);

// The rows of a product's operand with their scales, in float32. Scales of blocks of 128 are
// (rows or blocks of them, at least the blocks of a row).
at::Tensor scaled_numbers(const at::Tensor& rows, const at::Tensor& scale, ScalingType scaling);

} // namespace anyrig::virtual_gpu
