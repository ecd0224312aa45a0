// Python bindings of the process group.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Adds the class ProcessGroupNCCL and the functions that concern all groups of the process. Adds
// nothing if PyTorch was built without torch.distributed or without gloo.
void bind_collectives(pybind11::module_& m);

} // namespace anyrig::virtual_gpu
