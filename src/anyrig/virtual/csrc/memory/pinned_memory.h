// Page-locked ("pinned") host memory, cached as CUDA's allocator caches it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace anyrig::virtual_gpu {

// Returns PyTorch's own caching allocator for pinned memory, over ordinary host memory. It rounds
// sizes up to a power of two, keeps freed blocks, and reuses a block when the streams that copied
// from or to it are done.
at::HostAllocator* pinned_allocator();

bool is_pinned(const void* address);
// Pins memory of the program, as cudaHostRegister, until `unpin`.
void pin(const void* address, size_t bytes);
void unpin(const void* address);

// Marks pinned memory as used by an asynchronous copy on `stream`: after it is freed, it is reused
// only once the copy is done.
void record_pinned_use(const c10::DataPtr& data, const void* address, const c10::Stream& stream);

} // namespace anyrig::virtual_gpu
