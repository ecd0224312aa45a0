// Memory of a card that one process sends to others of the machine, as CUDA's interprocess memory:
// what torch.multiprocessing does with CUDA tensors.
//
//   the sender                                          a receiver
//   storage ── host bytes ──> | receivers | bytes | <── host bytes ── storage
//                               a file without a name
//
// A receiver opens the file (shared_file.h) while the sender lives, as with CUDA. Bytes count where
// the memory was made. If the sender frees it while receivers are left, its block stays taken until
// they let go and `collect_sent` has looked, as with CUDA.
//
// Memory moves into its file when it is first sent. Its tensors may be in use meanwhile, as with
// CUDA, where nothing moves: the sender waits for the kernels and collectives of other threads that
// use the bytes, and kernels that come later wait until the bytes have moved.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

#include <chrono>

namespace anyrig::virtual_gpu {

// Names sent memory to another process. In ShapeOnly there is no file, and nothing but the size.
struct Parcel {
  int64_t process;
  int file; // the sender's descriptor; kNoFile in ShapeOnly
  size_t bytes;

  static constexpr int kNoFile = -1;
};

// Moves the bytes of `storage` into a file, unless they are in one, and counts one more receiver.
// Raises RuntimeError for memory that this process received itself, for memory that a graph uses,
// and for memory that is still in use after `longest_wait`. To be called without the GIL: a kernel
// in use may be Python's.
Parcel send_memory(c10::StorageImpl& storage, std::chrono::duration<double> longest_wait);

// A tensor of bytes over sent memory, on `device` of this process. Raises torch.AcceleratorError,
// "invalid resource handle", if the sender has ended.
at::Tensor receive_memory(const Parcel& parcel, c10::DeviceIndex device);

// What a receiver does instead if it has that memory already.
void let_go(const Parcel& parcel);

bool is_sent_memory(const c10::DataPtr& host);
// Whether `memory`, which is about to end, was sent and has receivers. If so its block is freed
// once they are gone.
bool keep_for_receivers(DeviceMemory& memory);
// Frees what is not used any more of that.
void collect_sent();

} // namespace anyrig::virtual_gpu
