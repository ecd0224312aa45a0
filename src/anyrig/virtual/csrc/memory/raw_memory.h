// Memory that a program holds by its address alone: from torch.cuda.caching_allocator_alloc, or
// from a restored pool without a tensor.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace anyrig::virtual_gpu {

// Allocates memory on the current device for `stream`, a handle as in time/streams.h. Raises
// torch.OutOfMemoryError.
uintptr_t allocate_raw(size_t bytes, uintptr_t stream);
// Keeps `data` until it is freed by its address.
void keep_raw(c10::DataPtr data);
// Removes and returns the data kept under `address`; null if there is none.
c10::DataPtr take_raw(uintptr_t address);

} // namespace anyrig::virtual_gpu
