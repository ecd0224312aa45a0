// The groups of this process, for what concerns all of them: waiting for a device, and the end.
#pragma once

#include <c10/core/Device.h>

namespace anyrig::virtual_gpu {

class NcclGroup;

void add_live_group(NcclGroup* group);
void remove_live_group(NcclGroup* group);

// Waits for all transfers that `device` takes part in: the host half of cudaDeviceSynchronize.
// Raises DistBackendError of one that failed and that nobody has waited for.
void join_collectives(c10::DeviceIndex device);

// At the end of the process: ends the threads of all groups, so that none is left to be ended by
// static destruction, which would terminate the process. What is under way is waited for shortly,
// and only if the program ends well; a rank that fails leaves at once, and the others hear of it.
void close_groups(bool failed);

} // namespace anyrig::virtual_gpu
