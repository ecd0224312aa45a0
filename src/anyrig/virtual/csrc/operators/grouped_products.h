// Products of groups of matrices.
#pragma once

#include "operators/optional_tensor.h"

namespace anyrig::virtual_gpu {

// Of the sizes of the groups' product, with rows that begin at multiples of 16 bytes.
at::Tensor empty_for_groups(
    const at::Tensor& a, const at::Tensor& b, const OptionalTensor& offs, at::ScalarType dtype);

// Whether a matrix, or each of a batch, goes by columns. Raises if it goes by neither rows nor
// columns, or if they do not begin at multiples of 16 bytes.
bool is_transposed(const at::Tensor& matrix);

} // namespace anyrig::virtual_gpu
