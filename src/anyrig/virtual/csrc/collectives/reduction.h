// How NCCL combines the tensors of several ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// A reduction over `ranks` ranks, with ProcessGroupNCCL's checks of its arguments.
class Reduction {
 public:
  // Raises ValueError for the bitwise operations, TypeError if the operation does not support
  // `dtype`, and DistBackendError for float8 on a `device` with a compute capability below 9.0.
  Reduction(const c10d::ReduceOp& op, c10::ScalarType dtype, int ranks, c10::DeviceIndex device);

  // Returns what this rank adds to the sum. AVG of floats and PREMUL_SUM multiply before they add,
  // as NCCL does. The other operations return `mine` itself.
  at::Tensor prepare(const at::Tensor& mine) const;

  // Combines the prepared tensors, one for each rank, in rank order: all ranks that combine the
  // same tensors get the same bits.
  at::Tensor combine(const std::vector<at::Tensor>& by_rank) const;

  c10d::ReduceOp::RedOpType op() const { return op_; }

 private:
  c10d::ReduceOp::RedOpType op_;
  int ranks_;
  std::optional<double> factor_;
};

} // namespace anyrig::virtual_gpu
