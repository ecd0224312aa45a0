// Recording of stacks for torch.cuda.memory._record_memory_history, and its Python bindings.
#pragma once

#include "memory/memory_history.h"

#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

// Returns this thread's stack if stacks of this level are recorded; otherwise null, at the cost of
// one comparison. Takes the GIL, so the caller must not hold a lock that a holder of the GIL may
// wait for.
Context stack_for(RecordStacks level);

// Returns whether the allocators record their history.
bool history_enabled();

// Adds the functions that control the recording and return the history to `module`.
void bind_memory_history(py::module& module);

} // namespace anyrig::virtual_gpu
