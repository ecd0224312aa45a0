// Kernels for products and triangular solves of sparse compressed matrices, as cuSPARSE computes
// them.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <tuple>

namespace anyrig::virtual_gpu {

// Raises RuntimeError, with CUDA's text, for a product of blocks that cuSPARSE does not compute: of
// the arguments of mm, addmm or addmv.
void check_product_of_blocks(Arguments arguments, c10::Device device);

at::Tensor& compressed_bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out);
at::Tensor& compressed_baddbmm_out(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out);
std::tuple<at::Tensor&, at::Tensor&> compressed_triangular_solve_out(
    const at::Tensor& right,
    const at::Tensor& matrix,
    bool upper,
    bool transpose,
    bool unitriangular,
    at::Tensor& solution,
    at::Tensor& cloned_matrix);

} // namespace anyrig::virtual_gpu
