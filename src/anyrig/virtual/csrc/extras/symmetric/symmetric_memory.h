// torch.distributed._symmetric_memory on virtual devices, as PyTorch's backend "CUDA".
//
//   empty       GPU memory that processes share (shared_piece.h)
//   rendezvous  joins the memory of all ranks of a group (peers.h)
//   barrier, put_signal, wait_signal    words in the signal pads (signals.h)
//   operators   symmetric_operators.cpp
#pragma once

#include "extras/symmetric/peers.h"

namespace anyrig::virtual_gpu {

// The result of a rendezvous. The tensor lies `offset` bytes into the buffer of each rank.
struct Rendezvous {
  std::shared_ptr<Peers> peers;
  size_t offset;
};

// Returns the rendezvous of `tensor` over `group`, which the first call performs; all ranks must
// call it. `peers` is null if `tensor` is not in symmetric memory.
Rendezvous rendezvous(const at::Tensor& tensor, const std::string& group);

// Makes a tensor that PyTorch created from an address in symmetric memory keep that memory alive.
void keep_symmetric_memory_of(const at::Tensor& tensor);

// Registers the allocator of symmetric memory for CUDA, and its operators.
void install_symmetric_memory();
// Registers the operators under torch.ops.symm_mem, and the operator through which CUDA graphs
// record signals. Part of `install_symmetric_memory`.
void install_symmetric_operators();

// Sends or receives a signal through an operator, so that CUDA graphs record it.
enum class SignalKind : int64_t { Barrier, Put, Wait };
void call_signal(
    const at::Tensor& signal_pad,
    SignalKind kind,
    int peer,
    int channel,
    size_t timeout_ms);

} // namespace anyrig::virtual_gpu
