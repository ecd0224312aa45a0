// Dtypes that CUDA kernels support and CPU kernels do not: half precision in some operators,
// integers in a few. CUDA computes in a wider dtype inside the kernel; here the operands are
// widened before the CPU kernel and its results narrowed afterwards.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

using Dtypes = std::vector<at::ScalarType>;

// Returns the dtypes that the CUDA kernel of an operator accepts and the CPU kernel refuses; empty
// for most operators. `name` has no overload. Source: the dtypes that PyTorch's operator database
// lists for each device.
Dtypes dtypes_to_widen(const std::string& name);
// Returns the same for sparse tensors, whose CPU kernels are registered under `host_key`.
Dtypes dtypes_to_widen_in_containers(const std::string& name, c10::DispatchKey host_key);

// Returns whether an argument of the call on `stack` has one of these dtypes.
bool needs_widening(
    const Dtypes& dtypes, const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Converts arguments of these dtypes to a wider dtype and calls `kernel`. Narrows its results, and
// copies what it wrote to widened arguments back.
void run_widened(
    const Dtypes& dtypes,
    const c10::FunctionSchema& schema,
    torch::jit::Stack& stack,
    const std::function<void()>& kernel);

} // namespace anyrig::virtual_gpu
