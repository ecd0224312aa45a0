// Grouped matrix products.
#pragma once

#include "operators/optional_tensor.h"

namespace anyrig::virtual_gpu {

// Returns an empty tensor of the product's size, whose rows begin at multiples of 16 bytes.
at::Tensor empty_for_groups(
    const at::Tensor& a,
    const at::Tensor& b,
    const OptionalTensor& offs,
    at::ScalarType dtype);

// Returns whether a matrix, or each matrix of a batch, is column-major. Raises if it is neither
// row- nor column-major, or if its rows or columns do not begin at multiples of 16 bytes.
bool is_transposed(const at::Tensor& matrix);

} // namespace anyrig::virtual_gpu
