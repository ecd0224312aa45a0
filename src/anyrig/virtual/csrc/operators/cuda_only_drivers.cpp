// Decompositions whose cuSOLVER driver a caller may choose, and least squares, which has one
// driver.

#include "operators/cuda_only.h"

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
      "torch.linalg.svd: unknown svd driver ", driver.value_or(""), " in svd_cusolver computation.");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> svd(
    const at::Tensor& matrix, bool full_matrices, bool compute_uv, DriverName driver) {
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

} // namespace

void add_drivers(HostKernels& kernels) {
  add_kernel(kernels, "_linalg_svd", &svd);
  add_kernel(kernels, "_linalg_svd.U", &svd_out);
  add_kernel(kernels, "linalg_lstsq.out", &lstsq_out);
}

} // namespace anyrig::virtual_gpu
