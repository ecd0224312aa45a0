// Linear algebra: decompositions, some with a cuSOLVER driver that the caller may choose, and
// solvers.

#include "dispatch/operator_record.h"
#include "operators/sparse_products.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/linalg_lstsq.h>

namespace anyrig::virtual_gpu {
namespace {

using DriverName = std::optional<std::string_view>;

// cuSOLVER's drivers differ in speed and in the last bits; LAPACK computes for all of them.
void check_svd_driver(const DriverName& driver) {
  TORCH_CHECK(
      !driver.has_value() || *driver == "gesvd" || *driver == "gesvdj" || *driver == "gesvda",
      "torch.linalg.svd: unknown svd driver ", driver.value_or(""),
      " in svd_cusolver computation.");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> svd(
    const at::Tensor& matrix,
    bool full_matrices,
    bool compute_uv,
    DriverName driver) {
  check_svd_driver(driver);
  return at::_linalg_svd(matrix, full_matrices, compute_uv, std::nullopt);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> svd_out(
    const at::Tensor& matrix,
    bool full_matrices,
    bool compute_uv,
    DriverName driver,
    at::Tensor& u,
    at::Tensor& s,
    at::Tensor& vh) {
  check_svd_driver(driver);
  return at::_linalg_svd_out(u, s, vh, matrix, full_matrices, compute_uv, std::nullopt);
}

// get_default_lstsq_driver of aten/src/ATen/native/BatchLinearAlgebra.cpp: CUDA has a single
// driver.
std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> lstsq_out(
    const at::Tensor& matrix,
    const at::Tensor& right,
    std::optional<double> rcond,
    DriverName driver,
    at::Tensor& solution,
    at::Tensor& residuals,
    at::Tensor& rank,
    at::Tensor& singular_values) {
  TORCH_CHECK(
      !driver.has_value() || *driver == "gels",
      "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  return at::linalg_lstsq_out(
      solution, residuals, rank, singular_values, matrix, right, rcond, "gels");
}

// linalg_lstsq(self, b)
void check_is_matrix(Arguments arguments) {
  TORCH_CHECK(
      arguments[0].toTensor().dim() >= 2,
      "torch.linalg.lstsq: input must have at least 2 dimensions.");
}

OperatorRecords linear_algebra_records() {
  using enum c10::ScalarType;
  return {
      {{"cholesky"}, {.kernel = "cholesky_cusolver", .refused = kIntegralAndHalves}},
      {{"linalg_cholesky_ex"}, {.kernel = "cholesky_cusolver", .refused = kHalves}},
      {{"cholesky_inverse"},
       {.kernel = "cholesky_inverse_out_cuda", .refused = kIntegralAndHalves}},
      {{"_cholesky_solve_helper"},
       {.kernel = "cholesky_solve_cuda", .refused = kIntegralAndHalves}},
      {{"linalg_householder_product"}, {.kernel = "orgqr_cuda", .refused = kIntegralAndHalves}},
      {{"linalg_lu", "linalg_lu_factor_ex"},
       {.kernel = "lu_factor_cusolver", .refused = kIntegralAndHalves}},
      {{"linalg_lu_solve"}, {.kernel = "linalg.lu_solve_cuda", .refused = kHalves}},
      {{"linalg_ldl_factor_ex"}, {.kernel = "ldl_factor_kernel_cuda", .refused = kHalves}},
      {{"linalg_ldl_solve"}, {.kernel = "ldl_solve_kernel_cuda", .refused = kHalves}},
      {{"linalg_eig", "_linalg_eigvals"},
       {.kernel = "linalg_eig_cuda",
        .refused = kHalves,
        .dtype_rules = {dtype_in(0, kInexact, "Unknown Complex ScalarType for {1}")}}},
      {{"_linalg_eigh"}, {.kernel = "linalg_eigh_cuda", .refused = kIntegralAndHalves}},
      {{"linalg_qr", "geqrf"}, {.kernel = "geqrf_cuda", .refused = kHalves}},
      {{"_linalg_det", "_linalg_solve_ex"}, {.kernel = "lu_factor_cusolver", .refused = kHalves}},
      {{"linalg_solve_triangular"},
       {.kernel = "triangular_solve_cuda", .refused = kIntegralAndHalves}},
      {{"triangular_solve"},
       {.kernel = "triangular_solve_cuda",
        .refused = kIntegralAndHalves,
        .host_kernels = {host_kernel(
            &compressed_triangular_solve_out, "X", c10::DispatchKey::SparseCsrCUDA)}}},
      {{"ormqr"}, {.kernel = "ormqr_cuda", .refused = kIntegralAndHalves}},
      {{"linalg_cross"}, {.kernel = "cross_cuda", .refused = {Bool, ComplexHalf}}},
      {{"_linalg_svd"},
       {.kernel = "svd_cuda_gesvdj",
        .refused = kHalves,
        .host_kernels = {host_kernel(&svd), host_kernel(&svd_out, "U")}}},
      {{"linalg_lstsq"},
       {.check_arguments = check_is_matrix, .host_kernels = {host_kernel(&lstsq_out, "out")}}},
  };
}

const DeclaredRecords kLinearAlgebraRecords(linear_algebra_records());

} // namespace

} // namespace anyrig::virtual_gpu
