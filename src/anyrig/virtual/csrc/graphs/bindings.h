// Python bindings of CUDA graphs.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Adds the class CudaGraph and the function is_capturing.
void bind_graphs(pybind11::module_& module);

} // namespace anyrig::virtual_gpu
