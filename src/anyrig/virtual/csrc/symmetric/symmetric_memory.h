// torch.distributed._symmetric_memory on virtual devices: PyTorch's backend "CUDA" for it.
//
//   empty       a piece of the card's memory that processes share (shared_piece.h)
//   rendezvous  the pieces of all ranks of a group (peers.h)
//   barrier, put_signal, wait_signal    words in the pieces (signals.h)
//   operators   symmetric_operators.cpp
#pragma once

#include "symmetric/peers.h"

namespace anyrig::virtual_gpu {

// What rendezvous comes to: the peers, and where in their buffers the tensor lies.
struct MetMemory {
  std::shared_ptr<Peers> peers;
  size_t offset; // bytes
};

// Of `tensor` over `group`, as CUDA's operators ask for it. No peers if it is not symmetric.
MetMemory met_memory(const at::Tensor& tensor, const std::string& group);

// Has a tensor that PyTorch made of a bare address keep the memory that it lies in.
void keep_symmetric_memory_of(const at::Tensor& tensor);

// Makes it PyTorch's allocator of symmetric memory for CUDA, and adds the operators.
void install_symmetric_memory();
// Of that: the operators under torch.ops.symm_mem, and the one by which signals get into CUDA graphs.
void install_symmetric_operators();

// Signals as calls of an operator, so that CUDA graphs record them.
enum class SignalKind : int64_t { Barrier, Put, Wait };
void call_signal(
    const at::Tensor& words, SignalKind kind, int peer, int channel, size_t timeout_ms);

} // namespace anyrig::virtual_gpu
