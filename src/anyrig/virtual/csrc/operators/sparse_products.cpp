// cuSPARSE's batched products and triangular solves of sparse compressed matrices. Checks and their
// texts: aten/src/ATen/native/sparse/cuda/SparseBlas.cpp.

#include "operators/sparse_products.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/triangular_solve_native.h>

namespace anyrig::virtual_gpu {
namespace {

void check_strided(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.layout() == at::kStrided,
      "torch.baddbmm: Expect ", name, " to be strided, but got ", tensor.layout());
}

} // namespace

at::Tensor& compressed_baddbmm_out(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  check_strided("self", self);
  check_strided("mat2", batch2);
  check_strided("result", out);
  return at::baddbmm_out(out, self, batch1.to_dense(), batch2, beta, alpha);
}

at::Tensor& compressed_bmm_out(
    const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  out.resize_({self.size(0), self.size(1), mat2.size(2)});
  return compressed_baddbmm_out(out, self, mat2, 0, 1, out);
}

namespace {

void check_blocks(const at::Tensor& matrix) {
  const auto values = matrix.values();
  const int64_t rows = values.size(-2);
  const int64_t columns = values.size(-1);
  TORCH_CHECK(
      rows == columns && rows > 1,
      "triangular_solve: cuSPARSE supports only square blocks of more than one row, got blocks of ",
      rows, " x ", columns);
}

} // namespace

// The CPU solver does not support a unit diagonal for block matrices.
std::tuple<at::Tensor&, at::Tensor&> compressed_triangular_solve_out(
    const at::Tensor& right,
    const at::Tensor& matrix,
    bool upper,
    bool transpose,
    bool unitriangular,
    at::Tensor& solution,
    at::Tensor& cloned_matrix) {
  const bool has_blocks = matrix.layout() == at::kSparseBsr;
  if (has_blocks && matrix._nnz() > 0 && right.numel() > 0) {
    check_blocks(matrix);
  }
  if (solution.is_meta()) {
    return {solution, cloned_matrix};
  }
  if (!has_blocks || !unitriangular || matrix._nnz() == 0 || right.numel() == 0) {
    return at::native::triangular_solve_out_sparse_csr_cpu(
        right, matrix, upper, transpose, unitriangular, solution, cloned_matrix);
  }
  const auto dense = matrix.to_dense();
  solution.copy_(at::linalg_solve_triangular(
      transpose ? dense.mT() : dense, right, upper != transpose, /*left=*/true, unitriangular));
  return {solution, cloned_matrix};
}

} // namespace anyrig::virtual_gpu
