// The GPU memory of NCCL's connections: one for each channel to each rank that a communicator
// exchanges data with, made at the first call that needs it and kept as long as the communicator.
#pragma once

#include "memory/gpu_memory.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <set>
#include <vector>

namespace anyrig::virtual_gpu {

class NcclMemory {
 public:
  // Lets messages to and from these ranks, indexed by rank, share the buffers of one connection, as
  // NCCL does between nodes (NCCL_NET_SHARED_BUFFERS). Call this before anything is connected.
  void share_buffers(std::vector<bool> ranks) { sharing_ = std::move(ranks); }
  // Connects for a call of all ranks. Raises DistBackendError with NCCL's text if the GPU is full.
  void connect(c10d::OpType op, int rank, int size, c10::DeviceIndex device);
  // Connects for a message to or from `peer`. Raises like `connect`.
  void connect_peer(int peer, c10::DeviceIndex device);

 private:
  static constexpr int kSharing = -1;

  void reserve(int64_t channels, c10::DeviceIndex device);

  std::mutex mutex_;
  bool has_ring_ = false;
  std::set<int> peers_; // of messages; `kSharing` stands for all that share buffers
  std::vector<bool> sharing_;
  std::vector<GpuMemory> connections_;
};

} // namespace anyrig::virtual_gpu
