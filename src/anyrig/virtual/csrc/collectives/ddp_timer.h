// The timer behind DistributedDataParallel's logging data.
#pragma once

namespace anyrig::virtual_gpu {

// Registers a timer for virtual devices. Without a timer, DistributedDataParallel does not start.
void install_ddp_timer();

} // namespace anyrig::virtual_gpu
