// Numbers that a card computes with and the CPU has no kernel for: half precision in some
// operators, a few operators of integers. The card computes in a wider dtype inside its kernels; so
// does this, around the CPU's kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

using Dtypes = std::vector<at::ScalarType>;

// The dtypes that CUDA's kernel of an operator takes and the CPU's refuses; most often none.
// By the operator's name without its overload. From the dtypes that PyTorch's operator database
// lists for each device.
Dtypes dtypes_to_widen(const std::string& name);
// The same of sparse tensors, for which the CPU's kernels are those of `host_key`.
Dtypes dtypes_to_widen_in_containers(const std::string& name, c10::DispatchKey host_key);

// Whether an argument of the call on `stack` has one of these dtypes.
bool needs_widening(
    const Dtypes& dtypes, const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Calls `kernel` with those arguments in a wider dtype. Results in the wider dtype are narrowed,
// and what it wrote to is copied back.
void run_widened(
    const Dtypes& dtypes,
    const c10::FunctionSchema& schema,
    torch::jit::Stack& stack,
    const std::function<void()>& kernel);

} // namespace anyrig::virtual_gpu
