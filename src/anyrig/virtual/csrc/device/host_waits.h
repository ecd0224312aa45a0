// Where the host waits for a card, which torch.cuda.set_sync_debug_mode makes warnings or errors.
#pragma once

namespace anyrig::virtual_gpu {

// The numbers of torch.cuda.set_sync_debug_mode.
enum class WaitDebug { Silent = 0, Warns = 1, Raises = 2 };
void set_wait_debug(WaitDebug mode);
WaitDebug wait_debug();

// The host is about to wait. PyTorch finds the waits that its own kernels and copies make, and
// those for a stream; not those for an event or a device.
void note_host_wait();

} // namespace anyrig::virtual_gpu
