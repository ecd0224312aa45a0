// What Python sees of the process group.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Adds the class ProcessGroupNCCL, and what concerns all groups of the process. A PyTorch without
// torch.distributed or without gloo has no groups, and gets none.
void bind_collectives(pybind11::module_& m);

} // namespace anyrig::virtual_gpu
