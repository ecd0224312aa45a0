// The allocator's settings, as PyTorch reads them.
#pragma once

#include "memory/allocation_size.h"

#include <string>

namespace anyrig::virtual_gpu {

// What PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) asks for. Raises PyTorch's error for a
// setting that does not exist or cannot be read.
AllocatorOptions allocator_options_from_environment();

// Changes settings as the variable names them; returns all of them. Raises as above.
AllocatorOptions change_allocator_options(const std::string& settings);

} // namespace anyrig::virtual_gpu
