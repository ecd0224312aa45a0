// The Python functions of pinned memory.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

void bind_pinned_memory(pybind11::module_& module);

} // namespace anyrig::virtual_gpu
