// The allocator's settings, as PyTorch parses them.
#pragma once

#include "memory/allocation_size.h"

#include <string>

namespace anyrig::virtual_gpu {

// Returns the settings of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF). Raises PyTorch's error
// for an unknown setting or an invalid value.
AllocatorOptions allocator_options_from_environment();

// Applies `settings`, in the variable's syntax, and returns all settings. Raises the same errors.
AllocatorOptions change_allocator_options(const std::string& settings);

} // namespace anyrig::virtual_gpu
