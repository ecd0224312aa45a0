// The Python functions for the record of the clock and of memory.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

void bind_record(pybind11::module_& m);

} // namespace anyrig::virtual_gpu
