// Host memory that was freed, for the next request of the same size: a training step asks for the
// same sizes again and again, and from two threads, of which the C library would give each pages of
// its own.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

// Host memory like that of PyTorch's own CPU allocator, which is kept when it is freed.
c10::DataPtr take_host_memory(size_t bytes);

// Gives what is kept back to the C library.
void drop_kept_host_memory();

} // namespace anyrig::virtual_gpu
