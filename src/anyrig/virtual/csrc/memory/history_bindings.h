// The Python functions for the history of the allocators: torch.cuda.memory._record_memory_history.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Adds the functions that control the recording and return the history to `module`.
void bind_memory_history(pybind11::module_& module);

} // namespace anyrig::virtual_gpu
