// Points where the host waits for a GPU, for torch.cuda.set_sync_debug_mode to report.
#pragma once

#include <c10/core/Stream.h>

namespace anyrig::virtual_gpu {

// The numbers of torch.cuda.set_sync_debug_mode.
enum class WaitDebug { Silent = 0, Warns = 1, Raises = 2 };

// Warns once that not all waits are found.
void set_wait_debug(WaitDebug mode);
WaitDebug wait_debug();

// Returns whether waits are reported; if not, note_host_wait does nothing.
bool watches_waits();

// Reports that the host is about to wait for `stream`, as a warning or an error, depending on the
// mode. As in PyTorch, call it for waits of kernels and copies and for stream synchronization, but
// not for waits for an event or a device.
void note_host_wait(const c10::Stream& stream);

} // namespace anyrig::virtual_gpu
