// A cache of freed host memory. A training step requests the same sizes again and again, from two
// threads; the C library would give each thread its own pages.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

// Allocates host memory like PyTorch's CPU allocator. The memory enters the cache when it is freed.
c10::DataPtr take_host_memory(size_t bytes);

// Returns the cached memory to the C library.
void drop_kept_host_memory();

} // namespace anyrig::virtual_gpu
