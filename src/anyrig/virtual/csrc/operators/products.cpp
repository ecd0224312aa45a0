// Matrix products, and kernels for those with a result of a wider dtype. Checks and their texts:
// aten/src/ATen/native/cuda/Blas.cpp.

#include "dispatch/operator_record.h"
#include "operators/sparse_products.h"

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
    const at::Tensor& self,
    const at::Tensor& mat2,
    at::ScalarType dtype,
    at::Tensor& out) {
  check_dtypes(self, mat2, dtype);
  return at::mm_out(out, self.to(dtype), mat2.to(dtype));
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype) {
  check_dtypes(self, mat2, dtype);
  return at::bmm(self.to(dtype), mat2.to(dtype));
}

at::Tensor& bmm_out(
    const at::Tensor& self,
    const at::Tensor& mat2,
    at::ScalarType dtype,
    at::Tensor& out) {
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

void check_product(Arguments arguments) {
  const at::Tensor& first = arguments[0].toTensor();
  const at::Tensor& second = arguments[1].toTensor();
  TORCH_CHECK(
      first.dim() != 2 || second.dim() != 2 || first.size(1) == second.size(0),
      "mat1 and mat2 shapes cannot be multiplied (", first.size(0), "x", first.size(1), " and ",
      second.size(0), "x", second.size(1), ")");
}

// _int_mm_out_cuda of aten/src/ATen/native/cuda/Blas.cpp.
void check_product_of_bytes(Arguments arguments, c10::Device /*device*/) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& other = arguments[1].toTensor();
  if (self.dim() != 2 || other.dim() != 2) {
    return; // every backend refuses it
  }
  TORCH_CHECK(
      self.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", self.size(0));
  TORCH_CHECK(
      self.size(1) > 0 && self.size(1) % 8 == 0,
      "self.size(1) needs to be greater than 0 and a multiple of 8, but got ", self.size(1));
  TORCH_CHECK(
      self.size(1) == other.size(0), "self.size(1) needs to match mat2.size(0) but got ",
      self.size(1), " and ", other.size(0));
  TORCH_CHECK(
      other.size(1) > 0 && other.size(1) % 8 == 0,
      "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got ", other.size(1));
}

// cuBLAS multiplies integers and 8-bit floats only in operators of their own.
constexpr DtypeSet kNotMultiplied = kIntegral |
    DtypeSet{at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};

const std::vector<DtypeRule> kSumOfProduct = {
    same_dtype(0, 2, "self and mat2 must have the same dtype, but got {1} and {2}"),
    same_dtype(1, 2, "mat1 and mat2 must have the same dtype, but got {1} and {2}")};

OperatorRecords product_records() {
  return {
      {{"mm"},
       {.kernel = "addmm_cuda",
        .refused = kNotMultiplied,
        .dtype_rules = {same_dtype(
            1, 0, "expected mat1 and mat2 to have the same dtype, but got: {type 2} != {type 1}")},
        .check_arguments = check_product,
        .check_limits = check_product_of_blocks,
        .host_kernels = {host_kernel(&mm, "dtype"), host_kernel(&mm_out, "dtype_out")},
        .widened_coordinates = kHalves,
        .widened_compressed = kHalves,
        .uses_cublas = true}},
      {{"addmm"},
       {.kernel = "addmm_cuda",
        .refused = kNotMultiplied,
        .dtype_rules = kSumOfProduct,
        .check_limits = check_product_of_blocks,
        .host_kernels = {host_kernel(&addmm, "dtype"), host_kernel(&addmm_out, "dtype_out")},
        .widened_compressed = kHalves,
        .uses_cublas = true,
        .adds_bias = true}},
      {{"addmm_"},
       {.kernel = "addmm_cuda",
        .refused = kNotMultiplied,
        .dtype_rules = kSumOfProduct,
        .uses_cublas = true}},
      {{"_addmm_activation"},
       {.dtype_rules = kSumOfProduct, .uses_cublas = true, .adds_bias = true}},
      {{"addbmm", "addbmm_"},
       {.kernel = "addmm_cuda", .refused = kNotMultiplied, .uses_cublas = true}},
      {{"bmm"},
       {.kernel = "baddbmm_cuda",
        .refused = kNotMultiplied,
        .host_kernels =
            {host_kernel(&bmm, "dtype"), host_kernel(&bmm_out, "dtype_out"),
             host_kernel(&compressed_bmm_out, "out", c10::DispatchKey::SparseCsrCUDA)},
        .nested = NestedKernel::OnTwins,
        .uses_cublas = true}},
      {{"baddbmm"},
       {.kernel = "baddbmm_cuda",
        .refused = kNotMultiplied,
        .host_kernels =
            {host_kernel(&baddbmm, "dtype"), host_kernel(&baddbmm_out, "dtype_out"),
             host_kernel(&compressed_baddbmm_out, "out", c10::DispatchKey::SparseCsrCUDA)},
        .uses_cublas = true}},
      {{"baddbmm_"}, {.kernel = "baddbmm_cuda", .refused = kNotMultiplied, .uses_cublas = true}},
      {{"addmv"},
       {.kernel = "addmv_impl_cuda",
        .refused = kNotMultiplied,
        .check_limits = check_product_of_blocks,
        .widened_compressed = kHalves,
        .uses_cublas = true}},
      {{"addmv_"}, {.kernel = "addmv_impl_cuda", .refused = kNotMultiplied, .uses_cublas = true}},
      {{"dot", "vdot"}, {.kernel = "dot", .refused = kNotMultiplied, .uses_cublas = true}},
      {{"_int_mm"}, {.check_limits = check_product_of_bytes, .uses_cublas = true}},
      {{"sparse_sampled_addmm"}, {.kernel = "sampled_addmm_out_sparse_csr", .refused = kHalves}},
      {{"_sparse_sparse_matmul"}, {.widened_coordinates = kHalves}},
  };
}

const DeclaredRecords kProductRecords(product_records());

} // namespace

} // namespace anyrig::virtual_gpu
