// The stacks that torch.cuda.memory._record_memory_history keeps, and what Python sees of them.
#pragma once

#include "memory/memory_history.h"

#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

// The stack of this thread, if recording it was asked for at this level; else null, for the price
// of one comparison. Takes the GIL, so the caller holds no lock that a holder of the GIL may want.
Context stack_for(RecordStacks level);

// Whether the allocators record what they do.
bool history_enabled();

// Adds to `module` what turns recording on and off and shows what was recorded.
void bind_memory_history(py::module& module);

} // namespace anyrig::virtual_gpu
