// The GPU memory of NCCL's connections: one for each channel to each rank that a communicator
// exchanges data with, made at the first call that needs it and kept as long as the communicator.
#pragma once

#include "memory/card_memory.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <set>
#include <vector>

namespace anyrig::virtual_gpu {

class NcclMemory {
 public:
  // Connects for a call of all ranks. Raises DistBackendError with NCCL's text if the GPU is full.
  void connect(c10d::OpType op, int rank, int size, c10::DeviceIndex device);
  // Connects for a message to or from `peer`. Raises like `connect`.
  void connect_peer(int peer, c10::DeviceIndex device);

 private:
  void reserve(int64_t channels, c10::DeviceIndex device);

  std::mutex mutex_;
  bool has_ring_ = false;
  std::set<int> peers_; // of messages
  std::vector<CardMemory> connections_;
};

} // namespace anyrig::virtual_gpu
