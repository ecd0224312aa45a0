// Memory of a card that one process sends to others of the machine, as CUDA's interprocess memory:
// what torch.multiprocessing does with CUDA tensors.
//
//   the sender                                          a receiver
//   storage ── host bytes ──> | receivers | bytes | <── host bytes ── storage
//                               a file without a name
//
// A receiver opens the file (shared_file.h) while the sender lives, as with CUDA. Bytes count where the memory was made. If the sender frees it while receivers are left, its
// block stays taken until they let go and `collect_sent` has looked, as with CUDA.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {

// Names sent memory to another process. In ShapeOnly there is no file, and nothing but the size.
struct Parcel {
  int64_t process;
  int file; // the sender's descriptor; kNoFile in ShapeOnly
  size_t bytes;

  static constexpr int kNoFile = -1;
};

// Moves the bytes of `storage` into a file, unless they are in one, and counts one more receiver.
// Raises RuntimeError for memory that this process received itself, and for a graph's.
Parcel send_memory(c10::StorageImpl& storage);

// A tensor of bytes over sent memory, on `device` of this process. Raises torch.AcceleratorError,
// "invalid resource handle", if the sender has ended.
at::Tensor receive_memory(const Parcel& parcel, c10::DeviceIndex device);

// What a receiver does instead if it has that memory already.
void let_go(const Parcel& parcel);

// Whether `host` is sent memory with receivers. If so its block is freed once they are gone.
bool keep_for_receivers(Block* block, c10::DeviceIndex device, c10::DataPtr& host);
// Frees what is not used any more of that.
void collect_sent();

} // namespace anyrig::virtual_gpu
