// What is said when a collective fails: torch.distributed.DistBackendError, with the collective,
// its number, this rank and those that are missing.
#pragma once

#include "collectives/transport.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// A group as its messages speak of it.
struct Membership {
  int rank = 0;
  int size = 1;
  std::string name;
  // Of each member, its rank in the whole job; empty where they are the same.
  std::vector<uint64_t> global_ranks;
};

// A collective as a message of NCCL's process group speaks of it.
struct CollectiveCall {
  Membership group;
  c10d::OpType op = c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  int64_t numbers_in = 0;
  int64_t numbers_out = 0;
  std::chrono::milliseconds limit{0};
};

// Raises DistBackendError.
[[noreturn]] void raise_failure(const CollectiveCall& call, const std::string& reason);
[[noreturn]] void raise_failure(const CollectiveCall& call, const TransportError& error);

} // namespace anyrig::virtual_gpu
