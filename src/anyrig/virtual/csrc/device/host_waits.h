// Where the host waits for a card, which torch.cuda.set_sync_debug_mode makes warnings or errors.
#pragma once

#include <c10/core/Stream.h>

namespace anyrig::virtual_gpu {

// The numbers of torch.cuda.set_sync_debug_mode.
enum class WaitDebug { Silent = 0, Warns = 1, Raises = 2 };
void set_wait_debug(WaitDebug mode);
WaitDebug wait_debug();

// Whether somebody wants to know of waits; note_host_wait does nothing where nobody does.
bool watches_waits();

// The host is about to wait for `stream`. PyTorch finds the waits that its own kernels and copies
// make, and those for a stream; not those for an event or a device.
void note_host_wait(const c10::Stream& stream);

} // namespace anyrig::virtual_gpu
