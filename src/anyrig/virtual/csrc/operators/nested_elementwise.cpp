// Sums and products of a nested tensor [B, *, D] and a dense tensor [B, 1, D]. PyTorch's code
// supports them on CUDA only and calls a kernel registered for CUDA.

#include "operators/nested_elementwise.h"

#include "dispatch/twin.h"
#include "time/clock.h"
#include "time/records/operator_work.h"
#include "time/streams.h"
#include "time/work.h"

#include <ATen/native/nested/NestedTensorBinaryOps.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

namespace anyrig::virtual_gpu {
namespace {

using Operation = at::native::NESTED_DENSE_OP;

void check_nested_dtypes(const at::Tensor& self, const at::Tensor& other) {
  const auto dtype = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype != at::kBool && !c10::isComplexType(dtype),
      "\"_nested_op_dense_esuhm\" not implemented for '", dtype, "'");
  TORCH_CHECK(
      other.scalar_type() == dtype, "expected scalar type ", dtype, " but found ",
      other.scalar_type());
}

// Like CUDA's kernel, ignores strides and the factor of torch.add(…, alpha=…).
void combine_with_rows(
    at::Tensor& result,
    const at::Tensor& self,
    const at::Tensor& other,
    const Operation& op) {
  check_nested_dtypes(self, other);
  const auto* nested = at::native::get_nested_tensor_impl(self);
  const auto from = nested->get_buffer();
  const auto to = at::native::get_nested_tensor_impl(result)->get_buffer();
  Clock::get().run(
      current_stream(self.device().index()),
      memory_work(touched_bytes(from) + touched_bytes(other), touched_bytes(to)));
  if (shape_only()) {
    return;
  }
  const int64_t row = other.size(2);
  const auto sums = twin_of(to);
  const auto numbers = twin_of(from);
  const auto rows = twin_of(other).reshape({-1, row});
  const auto offsets = nested->get_storage_offsets();
  const auto* starts = offsets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const int64_t end = i + 1 < rows.size(0) ? starts[i + 1] : from.numel();
    auto part = sums.slice(0, starts[i], end).view({-1, row});
    const auto operand = numbers.slice(0, starts[i], end).view({-1, row});
    if (op == Operation::ADD) {
      at::add_out(part, operand, rows[i]);
    } else {
      at::mul_out(part, operand, rows[i]);
    }
  }
}

} // namespace

void register_nested_elementwise() {
  at::native::nested_dense_elementwise_stub.set_cuda_dispatch_ptr(&combine_with_rows);
}

} // namespace anyrig::virtual_gpu
