// How NCCL combines the numbers of several ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// A reduction of one rank's tensors, checked as ProcessGroupNCCL checks it.
class Reduction {
 public:
  // Raises ValueError for the bitwise operations, and TypeError where the type does not go with
  // the operation. `ranks` take part.
  Reduction(
      const c10d::ReduceOp& op, c10::ScalarType dtype, int ranks, c10::DeviceIndex device);

  // This rank's part of the sum: AVG and PREMUL_SUM multiply before they add, as NCCL does.
  // Returns `mine` itself where nothing is to be done.
  at::Tensor prepare(const at::Tensor& mine) const;

  // Combines the prepared parts, one a rank, in the order of ranks: all ranks that combine the same
  // parts get the same bits.
  at::Tensor combine(const std::vector<at::Tensor>& by_rank) const;

  c10d::ReduceOp::RedOpType op() const { return op_; }

 private:
  c10d::ReduceOp::RedOpType op_;
  int ranks_;
  std::optional<double> factor_;
};

} // namespace anyrig::virtual_gpu
