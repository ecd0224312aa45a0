// Errors of Meta kernels that are written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// A failed `assert` there is a check of a kernel in C++ on a card: raises RuntimeError with its
// words. Returns for any other error.
void raise_as_kernel(const pybind11::error_already_set& error);

// Whether it says that an operator of another library has results whose sizes depend on values, or
// has no kernel that tells them.
bool says_sizes_are_unknown(const pybind11::error_already_set& error);

} // namespace anyrig::virtual_gpu
