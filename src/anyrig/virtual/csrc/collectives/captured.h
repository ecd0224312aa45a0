// Collectives in CUDA graphs. A collective runs in a thread of its group, but the next operator of
// a capture or replay reads its result at once. So the recorder waits for each collective.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace anyrig::virtual_gpu {

// Returns whether `schema` is an operator on a process group (namespace c10d). The schemas of these
// operators do not declare which arguments they write to.
bool is_collective(const c10::FunctionSchema& schema);

// Waits for the collective whose operator returned `results`. Does nothing for other operators.
// Raises DistBackendError.
void await_collective(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> results);

} // namespace anyrig::virtual_gpu
