// A cache of freed host memory. A training step requests the same sizes again and again, from two
// threads; the C library would give each thread its own pages, and return those of large pieces to
// the system.
//
//   request    ── round up to a class ──>   a kept piece of that class, else one of malloc
//   release    ── round down the piece's usable size ──> kept under that class
//
// The cache needs no setting of the C library. Such settings hold for the whole process, and would
// slow down the program's own threads: loaders that allocate concurrently need an arena each.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

// Allocates host memory like PyTorch's CPU allocator. The memory enters the cache when it is freed.
c10::DataPtr take_host_memory(size_t bytes);

// Returns the cached memory to the C library.
void drop_kept_host_memory();

} // namespace anyrig::virtual_gpu
