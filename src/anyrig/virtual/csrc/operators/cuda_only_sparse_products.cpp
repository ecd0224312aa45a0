// Batched products of sparse compressed matrices, which cuSPARSE has. Checks and their texts:
// aten/src/ATen/native/sparse/cuda/SparseBlas.cpp.

#include "operators/cuda_only.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>

namespace anyrig::virtual_gpu {
namespace {

void check_strided(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.layout() == at::kStrided,
      "torch.baddbmm: Expect ", name, " to be strided, but got ", tensor.layout());
}

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

} // namespace

void add_compressed_products(HostKernels& kernels) {
  add_kernel(kernels, "bmm.out", &compressed_bmm_out);
  add_kernel(kernels, "baddbmm.out", &compressed_baddbmm_out);
}

} // namespace anyrig::virtual_gpu
