// Errors of Meta kernels written in Python.
#pragma once

#include <exception>

namespace anyrig::virtual_gpu {

// Raises RuntimeError with the same message if `error` is an AssertionError of Python: an `assert` in a Meta
// kernel stands for a TORCH_CHECK of the CUDA kernel. Returns for any other error.
void raise_if_assertion(const std::exception& error);

// Returns whether `error` says that a foreign operator's result sizes depend on values, or that it
// has no fake kernel.
bool says_sizes_are_unknown(const std::exception& error);

} // namespace anyrig::virtual_gpu
