// Device memory that one process sends to other processes of the node, as torch.multiprocessing
// does with CUDA tensors through CUDA's interprocess memory.
//
//   the sender                                          a receiver
//   storage ── host bytes ──> | receivers | bytes | <── host bytes ── storage
//                               an unnamed file
//
// As with CUDA, a receiver opens the file (shared_file.h) while the sender is alive, and the bytes
// count in the process that allocated them. If the sender frees the memory while it has receivers,
// its block stays allocated until the receivers have released it, or have ended (receivers.h), and
// the sender collects it: at its next send, or when a request finds no free block. With CUDA,
// memory whose receiver was killed stays until the sender ends.
//
// Memory moves into its file when it is first sent. With CUDA nothing moves, so its tensors may be
// in use at that time: the sender waits for the kernels and collectives of other threads that use
// the bytes, and later kernels wait until the bytes have moved.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <vector>

namespace anyrig::virtual_gpu {

// Identifies sent memory for another process. In ShapeOnly there is no file, only the size.
struct Parcel {
  int64_t process;
  int file; // the sender's descriptor; kNoFile in ShapeOnly
  size_t bytes;

  static constexpr int kNoFile = -1;
};

// Moves the bytes of `storage` into a file, unless they are in one, and increments the count of
// receivers. Raises RuntimeError for memory that this process received, for memory that a graph
// uses, and for memory that is still in use after `longest_wait`. Call it without the GIL: a Python
// kernel may be using the memory.
Parcel send_memory(c10::StorageImpl& storage, std::chrono::duration<double> longest_wait);

// Returns a uint8 tensor over sent memory on `device` of this process. Raises
// torch.AcceleratorError, "invalid resource handle", if the sender has ended.
at::Tensor receive_memory(const Parcel& parcel, c10::DeviceIndex device);

// Releases sent memory that the receiver has already opened.
void let_go(const Parcel& parcel);

bool is_sent_memory(const c10::DataPtr& host);
// If `memory`, which is being destroyed, was sent and has receivers, keeps it for them and returns
// true. `collect_sent` frees its block later.
bool keep_for_receivers(DeviceMemory& memory);
// Frees the kept memory that is no longer in use. The sender's next send calls it, and so does
// torch.cuda.ipc_collect.
void collect_sent();
// Returns the blocks of kept memory of `device` that is no longer in use, for the caller to free.
// The allocator calls it when no free block fits a request, as CUDA's does.
std::vector<Block*> take_unused_sent(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
