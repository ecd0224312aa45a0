// Recording of stacks for torch.cuda.memory._record_memory_history.
#pragma once

#include "memory/memory_history.h"

namespace anyrig::virtual_gpu {

// Returns this thread's stack if stacks of this level are recorded; otherwise null, at the cost of
// one comparison. Takes the GIL, so the caller must not hold a lock that a holder of the GIL may
// wait for.
Context stack_for(RecordStacks level);

// Returns whether the allocators record their history.
bool history_enabled();

// Sets the level up to which stacks are recorded, whether they contain C++ frames, and whether the
// allocators record their history.
void record_stacks(RecordStacks stacks, bool cpp_frames, bool history);

} // namespace anyrig::virtual_gpu
