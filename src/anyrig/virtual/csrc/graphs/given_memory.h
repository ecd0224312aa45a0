// Memory that a capture is given and that others had before: of inputs, say, that were dropped when
// they had been read. On a card a capture writes nothing, so a replay still finds there what it is
// to read; here the capture computes, and puts back at its end what lay there.
#pragma once

#include "time/event.h"

#include <c10/core/Allocator.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

// Call it before anything is written to `memory`, the `bytes` of a block. What `capture` was given
// before is known already, and left out.
void keep_given(CaptureId capture, c10::DataPtr memory, size_t bytes);

// Called once, when all of the capture's calls were made.
void put_back_given(CaptureId capture);

} // namespace anyrig::virtual_gpu
