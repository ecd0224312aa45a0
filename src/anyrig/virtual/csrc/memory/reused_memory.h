// Previously used memory that is allocated during a capture, such as the memory of inputs dropped
// after their last use. On a GPU a capture writes nothing, so a replay still finds the inputs
// there. Here the capture computes, so the previous contents are saved and restored at its end.
#pragma once

#include "time/event.h"

#include <c10/core/Allocator.h>

#include <cstddef>

namespace anyrig::virtual_gpu {

// Saves the `bytes` of a block's `memory` before the capture writes to it. Skips ranges that are
// already saved for `capture`.
void save_reused_memory(CaptureId capture, c10::DataPtr memory, size_t bytes);

// Restores the saved contents. Called once, after the last operator of the capture.
void restore_reused_memory(CaptureId capture);

} // namespace anyrig::virtual_gpu
