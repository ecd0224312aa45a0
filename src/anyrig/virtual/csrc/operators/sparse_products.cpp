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
      tensor.layout() == at::kStrided, "torch.baddbmm: Expect ", name, " to be strided, but got ",
      tensor.layout());
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
  TORCH_CHECK(
      batch1._nnz() == 0 || out.numel() == 0,
      "false INTERNAL ASSERT FAILED at \"/pytorch/aten/src/ATen/cuda/CUDASparseDescriptors.cpp\", "
      "please report a bug to PyTorch. Support for batched CSR indices and values is not "
      "implemented.");
  return at::baddbmm_out(out, self, batch1.to_dense(), batch2, beta, alpha);
}

at::Tensor& compressed_bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
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

// block_sparse_mv and block_sparse_mm of aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp.
void check_product_of_blocks(Arguments arguments, c10::Device /*device*/) {
  for (const auto& argument : arguments) {
    if (!argument.isTensor()) {
      continue;
    }
    const at::Tensor& matrix = argument.toTensor();
    const bool has_blocks = matrix.layout() == at::kSparseBsr || matrix.layout() == at::kSparseBsc;
    if (!has_blocks || matrix._nnz() == 0) {
      continue;
    }
    const auto values = matrix.values();
    const auto expect = [](bool holds, const char* condition) {
      TORCH_CHECK(
          holds, condition,
          " INTERNAL ASSERT FAILED at "
          "\"/pytorch/aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp\", please report a bug "
          "to "
          "PyTorch.");
    };
    const bool by_vector =
        arguments.size() > 2 && arguments[2].isTensor() && arguments[2].toTensor().dim() == 1;
    expect(
        values.size(-2) == values.size(-1),
        by_vector ? "mat.values().size(2) == mat.values().size(1)"
                  : "mat1.values().size(2) == mat1.values().size(1)");
    expect(
        values.size(-1) > 1,
        by_vector ? "mat.values().size(-1) > 1" : "mat1.values().size(-1) > 1");
    const auto dtype = matrix.scalar_type();
    TORCH_CHECK_NOT_IMPLEMENTED(
        !by_vector || (dtype != at::kHalf && dtype != at::kBFloat16),
        "\"block_sparse_mv\" not implemented for '", dtype, "'");
  }
}

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
  solution.copy_(
      at::linalg_solve_triangular(
          transpose ? dense.mT() : dense, right, upper != transpose, /*left=*/true, unitriangular));
  return {solution, cloned_matrix};
}

} // namespace anyrig::virtual_gpu
