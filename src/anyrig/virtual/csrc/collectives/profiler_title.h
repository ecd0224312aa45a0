// The names under which PyTorch's profiler and its flight recorder know NCCL's collectives.
#pragma once

#include "time/collective_time.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string>

namespace anyrig::virtual_gpu {

// Of `op`, whose first or only part is of `kind`: "nccl:all_reduce". Of a message also who sends it
// and who gets it: "nccl:send 0->1".
std::string profiler_title(c10d::OpType op, CollectiveKind kind, int rank, int peer);

} // namespace anyrig::virtual_gpu
