// The allocator's settings, as PyTorch reads them.
#pragma once

#include "memory/allocation_size.h"

namespace anyrig::virtual_gpu {

// What PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) asks for. Raises PyTorch's error for a
// setting that does not exist or cannot be read.
AllocatorOptions allocator_options_from_environment();

} // namespace anyrig::virtual_gpu
