// Who holds how many bytes of a GPU, read from the file that the processes of a rehearsal share:
// csrc/memory/gpu_ledger.h has its layout. Nothing is written or locked here, so a process that
// only looks is no part of the rehearsal.
#pragma once

#include "rig.h"

#include <vector>

namespace anyrig::nvml {

/// The living processes that hold bytes of the GPU at `position` of the rig.
std::vector<Process> holders(const Rig& rig, std::size_t position);

}  // namespace anyrig::nvml
