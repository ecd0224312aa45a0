// Page-locked ("pinned") memory of the host, cached as CUDA's allocator caches it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

// PyTorch's own caching of pinned memory, over memory of the host that is called pinned: rounded up
// to a power of two, kept when it is freed, and handed out again when the streams that copied from
// or to it are done.
at::HostAllocator* pinned_allocator();

bool is_pinned(const void* address);
// Memory of the program's own that cudaHostRegister pins, until it is unregistered.
void pin(const void* address, size_t bytes);
void unpin(const void* address);

// `stream` copies from or to `data` without waiting: it is handed out again once that is done.
void record_pinned_use(const c10::DataPtr& data, const void* address, const c10::Stream& stream);

void bind_pinned_memory(py::module& module);

} // namespace anyrig::virtual_gpu
