// Dtypes that CUDA kernels support and CPU kernels do not: half precision in some operators,
// integers in a few. CUDA computes in a wider dtype inside the kernel; here the operands are
// widened before the CPU kernel and its results narrowed afterwards.
#pragma once

#include "dispatch/dtype_set.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace anyrig::virtual_gpu {

// Returns whether an argument of the call on `stack` has one of these dtypes.
bool needs_widening(
    DtypeSet dtypes,
    const c10::FunctionSchema& schema,
    const torch::jit::Stack& stack);

// Converts arguments of these dtypes to a wider dtype and calls `kernel`. Narrows its results, and
// copies what it wrote to widened arguments back.
void run_widened(
    DtypeSet dtypes,
    const c10::FunctionSchema& schema,
    torch::jit::Stack& stack,
    const std::function<void()>& kernel);

} // namespace anyrig::virtual_gpu
