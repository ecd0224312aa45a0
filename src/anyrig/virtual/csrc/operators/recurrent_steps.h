// The steps of recurrent layers on the host, by PyTorch's code for the CPU.
#pragma once

#include "operators/recurrent_arguments.h"

namespace anyrig::virtual_gpu {

struct HostSteps {
  std::vector<at::Tensor> leaves; // copies of the operands
  std::vector<at::Tensor> results;
};

// Runs the operator on copies of `tensors`, cast to `dtype`; in ShapeOnly, on Meta tensors.
// `differentiates`: whether to keep the graph from the leaves to the results.
HostSteps run_host_steps(
    const c10::OperatorHandle& op,
    const LayerArguments& arguments,
    const std::vector<at::Tensor>& tensors,
    at::ScalarType dtype,
    bool differentiates);

} // namespace anyrig::virtual_gpu
