// Collectives within CUDA graphs: they run in threads of their group, and what comes behind them in
// a recording looks at their results at once.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Whether this is one of torch.distributed's operators on a process group. Their schemas do not say
// what they write to.
bool is_collective(const c10::FunctionSchema& schema);

// Waits until what such an operator returned is there. Raises DistBackendError.
void await_collective(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> results);

} // namespace anyrig::virtual_gpu
