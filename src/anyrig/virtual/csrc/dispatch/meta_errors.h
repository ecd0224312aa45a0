// Errors of Meta kernels written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace anyrig::virtual_gpu {

// Raises RuntimeError with the same message if `error` is an AssertionError: an `assert` in a Meta
// kernel stands for a TORCH_CHECK of the CUDA kernel. Returns for any other error.
void raise_if_assertion(const pybind11::error_already_set& error);

// Returns whether `error` says that a foreign operator's result sizes depend on values, or that it
// has no fake kernel.
bool says_sizes_are_unknown(const pybind11::error_already_set& error);

} // namespace anyrig::virtual_gpu
