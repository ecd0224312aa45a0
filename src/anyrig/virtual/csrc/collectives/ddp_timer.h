// The clock of DistributedDataParallel's logging data.
#pragma once

namespace anyrig::virtual_gpu {

// Gives DistributedDataParallel a timer for virtual devices; it does not start without one.
void install_ddp_timer();

} // namespace anyrig::virtual_gpu
