// The process groups of this process, for device synchronization and process exit.
#pragma once

#include <c10/core/Device.h>

namespace anyrig::virtual_gpu {

class NcclGroup;

void add_live_group(NcclGroup* group);
void remove_live_group(NcclGroup* group);

// Blocks the host until the transfers of `device` have ended, sends excepted; this is the first
// half of cudaDeviceSynchronize. Raises the DistBackendError of a failed transfer that no thread
// has waited for.
void join_collectives(c10::DeviceIndex device);

// Ends the threads of all groups at process exit: static destruction of a running thread would
// terminate the process. If the program succeeded, waits up to 10 s for pending transfers. If the
// program `failed`, aborts at once, and the other ranks see their connections close.
void close_groups(bool failed);

} // namespace anyrig::virtual_gpu
