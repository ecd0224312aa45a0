// The Python bindings of symmetric memory.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Binds nothing if PyTorch was built without gloo.
void bind_symmetric_memory(pybind11::module_& module);

} // namespace anyrig::virtual_gpu
