#ifdef USE_C10D_GLOO

#include "collectives/reduction.h"

#include "device/device.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {
namespace {

using Op = c10d::ReduceOp::RedOpType;

double premul_factor(const c10d::ReduceOp& op) {
  const auto& supplement = static_cast<const c10d::NCCLPreMulSumSupplement&>(*op.supplement_);
  if (!supplement.tensor_factor.defined()) {
    return supplement.double_factor;
  }
  return shape_only() ? 1.0 : supplement.tensor_factor.item<double>();
}

// The dtype in which the CPU can add values of `dtype`.
c10::ScalarType arithmetic_type(c10::ScalarType dtype) {
  return c10::isFloat8Type(dtype) ? at::kFloat : dtype;
}

at::Tensor combine_two(const at::Tensor& a, const at::Tensor& b, Op op) {
  switch (op) {
    case Op::PRODUCT:
      return a.mul(b);
    case Op::MIN:
      return a.minimum(b);
    case Op::MAX:
      return a.maximum(b);
    default:
      return a.add(b);
  }
}

} // namespace

Reduction::Reduction(
    const c10d::ReduceOp& op,
    c10::ScalarType dtype,
    int ranks,
    c10::DeviceIndex device)
    : op_(op), ranks_(ranks) {
  TORCH_CHECK(
      dtype != at::kFloat8_e5m2fnuz && dtype != at::kFloat8_e4m3fnuz,
      "Unsupported Float8 type for NCCL reduction");
  // From taskAppend in NCCL's enqueue.cc, which runs after PyTorch's own checks.
  TORCH_CHECK_WITH(
      DistBackendError, !c10::isFloat8Type(dtype) || devices().at(device).capability_major >= 9,
      "NCCL error: invalid argument\nLast error:\nFP8 reduction support begins with sm90 capable "
      "devices.");
  switch (op_) {
    case Op::BAND:
      C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BAND with NCCL");
    case Op::BOR:
      C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BOR with NCCL");
    case Op::BXOR:
      C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BXOR with NCCL");
    case Op::UNUSED:
      C10_THROW_ERROR(ValueError, "Unhandled ReduceOp");
    case Op::AVG:
      if (dtype == at::kBool) {
        C10_THROW_ERROR(TypeError, "Cannot use ReduceOp.AVG with boolean inputs");
      }
      if (c10::isFloatingType(dtype)) {
        factor_ = 1.0 / ranks;
      }
      break;
    case Op::PREMUL_SUM:
      if (dtype != at::kHalf && dtype != at::kFloat && dtype != at::kBFloat16 &&
          dtype != at::kDouble) {
        C10_THROW_ERROR(TypeError, "PreMulSum Data type must be half, float, bfloat16 or double");
      }
      factor_ = premul_factor(op);
      break;
    case Op::SUM:
      // A sum of bytes would overflow; a sum of booleans is true if any of them is.
      op_ = dtype == at::kBool ? Op::MAX : Op::SUM;
      break;
    default:
      break;
  }
}

at::Tensor Reduction::prepare(const at::Tensor& mine) const {
  if (!factor_.has_value()) {
    return mine;
  }
  return mine.to(arithmetic_type(mine.scalar_type())).mul(*factor_).to(mine.scalar_type());
}

at::Tensor Reduction::combine(const std::vector<at::Tensor>& by_rank) const {
  const auto dtype = by_rank[0].scalar_type();
  const auto arithmetic = arithmetic_type(dtype);
  at::Tensor total = by_rank[0];
  for (size_t i = 1; i < by_rank.size(); ++i) {
    // Round after each step, as NCCL's ring does.
    total = combine_two(total.to(arithmetic), by_rank[i].to(arithmetic), op_).to(dtype);
  }
  if (op_ == Op::AVG && !factor_.has_value()) {
    return total.div(ranks_, "trunc").to(dtype);
  }
  return total;
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
