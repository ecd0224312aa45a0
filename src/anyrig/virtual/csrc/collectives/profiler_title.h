// The names of NCCL's collectives in PyTorch's profiler and flight recorder.
#pragma once

#include "time/collective_time.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string>

namespace anyrig::virtual_gpu {

// Returns the name of `op`, whose first or only collective is of `kind`: "nccl:all_reduce". The
// name of a message has its ranks: "nccl:send 0->1" or "nccl:recv 1<-0".
std::string profiler_title(c10d::OpType op, CollectiveKind kind, int rank, int peer);

} // namespace anyrig::virtual_gpu
