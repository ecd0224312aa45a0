// The error of a failed collective: torch.distributed.DistBackendError. Its message names the
// collective, its sequence number, this rank and the ranks that did not take part.
#pragma once

#include "collectives/transport.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// A process group, as error messages describe it.
struct Membership {
  int rank = 0;
  int size = 1;
  std::string name;
  // The global rank of each member; empty if global ranks and group ranks are the same.
  std::vector<uint64_t> global_ranks;
};

// A collective, as ProcessGroupNCCL's messages describe it.
struct CollectiveCall {
  Membership group;
  c10d::OpType op = c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  int64_t input_numel = 0;
  int64_t output_numel = 0;
  std::chrono::milliseconds limit{0};
};

// Raises DistBackendError.
[[noreturn]] void raise_failure(const CollectiveCall& call, const std::string& reason);
[[noreturn]] void raise_failure(const CollectiveCall& call, const TransportError& error);

} // namespace anyrig::virtual_gpu
