#ifdef USE_C10D_GLOO

#include "collectives/nccl_memory.h"

#include "device/device.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// NCCL composes these of messages between pairs of ranks: torch/csrc/cuda/nccl.cpp.
bool is_made_of_messages(c10d::OpType op) {
  return op == c10d::OpType::ALLTOALL || op == c10d::OpType::ALLTOALL_BASE ||
      op == c10d::OpType::GATHER || op == c10d::OpType::SCATTER;
}

} // namespace

void NcclMemory::connect(c10d::OpType op, int rank, int size, c10::DeviceIndex device) {
  if (is_made_of_messages(op)) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        connect_peer(peer, device);
      }
    }
    return;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!has_ring_) {
    const int64_t neighbours = std::min(size - 1, 2);
    reserve(neighbours * devices()[device].driver_memory.ring_channels, device);
    has_ring_ = true;
  }
}

void NcclMemory::connect_peer(int peer, c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto index = static_cast<size_t>(peer);
  const int owner = index < sharing_.size() && sharing_[index] ? kSharing : peer;
  if (peers_.count(owner) == 0) {
    reserve(devices()[device].driver_memory.message_channels, device);
    peers_.insert(owner);
  }
}

void NcclMemory::reserve(int64_t channels, c10::DeviceIndex device) {
  const int64_t bytes = channels * devices()[device].driver_memory.connection_bytes;
  provide_context(device);
  auto memory = GpuMemory::try_reserve(device, static_cast<size_t>(bytes), GpuUse::Communication);
  TORCH_CHECK_WITH(
      DistBackendError, memory.has_value(),
      "NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
      "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
      "Failed to CUDA calloc ",
      bytes, " bytes");
  connections_.push_back(std::move(*memory));
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
