// Matrix products with a result of a wider dtype. Checks and their texts:
// aten/src/ATen/native/cuda/Blas.cpp.

#include "operators/cuda_only.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

namespace anyrig::virtual_gpu {
namespace {

void check_dtypes(const at::Tensor& a, const at::Tensor& b, at::ScalarType result) {
  TORCH_CHECK(
      a.scalar_type() == b.scalar_type(),
      "expected mat1 and mat2 to have the same dtype, but got: ", a.dtype(), " != ", b.dtype());
  const bool narrow = a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16;
  TORCH_CHECK(
      result == a.scalar_type() || (result == at::kFloat && narrow),
      "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype) {
  check_dtypes(self, mat2, dtype);
  return at::mm(self.to(dtype), mat2.to(dtype));
}

at::Tensor& mm_out(
    const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype, at::Tensor& out) {
  check_dtypes(self, mat2, dtype);
  return at::mm_out(out, self.to(dtype), mat2.to(dtype));
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype) {
  check_dtypes(self, mat2, dtype);
  return at::bmm(self.to(dtype), mat2.to(dtype));
}

at::Tensor& bmm_out(
    const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype, at::Tensor& out) {
  check_dtypes(self, mat2, dtype);
  return at::bmm_out(out, self.to(dtype), mat2.to(dtype));
}

at::Tensor addmm(
    const at::Tensor& self,
    const at::Tensor& mat1,
    const at::Tensor& mat2,
    at::ScalarType dtype,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  check_dtypes(mat1, mat2, dtype);
  return at::addmm(self.to(dtype), mat1.to(dtype), mat2.to(dtype), beta, alpha);
}

at::Tensor& addmm_out(
    const at::Tensor& self,
    const at::Tensor& mat1,
    const at::Tensor& mat2,
    at::ScalarType dtype,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  check_dtypes(mat1, mat2, dtype);
  return at::addmm_out(out, self.to(dtype), mat1.to(dtype), mat2.to(dtype), beta, alpha);
}

at::Tensor baddbmm(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    at::ScalarType dtype,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  check_dtypes(batch1, batch2, dtype);
  return at::baddbmm(self.to(dtype), batch1.to(dtype), batch2.to(dtype), beta, alpha);
}

at::Tensor& baddbmm_out(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    at::ScalarType dtype,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  check_dtypes(batch1, batch2, dtype);
  return at::baddbmm_out(out, self.to(dtype), batch1.to(dtype), batch2.to(dtype), beta, alpha);
}

} // namespace

void add_products(HostKernels& kernels) {
  add_kernel(kernels, "mm.dtype", &mm);
  add_kernel(kernels, "mm.dtype_out", &mm_out);
  add_kernel(kernels, "bmm.dtype", &bmm);
  add_kernel(kernels, "bmm.dtype_out", &bmm_out);
  add_kernel(kernels, "addmm.dtype", &addmm);
  add_kernel(kernels, "addmm.dtype_out", &addmm_out);
  add_kernel(kernels, "baddbmm.dtype", &baddbmm);
  add_kernel(kernels, "baddbmm.dtype_out", &baddbmm_out);
}

} // namespace anyrig::virtual_gpu
