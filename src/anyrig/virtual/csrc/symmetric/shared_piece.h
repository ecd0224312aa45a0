// What one rank has of symmetric memory, as one process sees it: a buffer, and the words of its
// signals (signals.h) with a moment of the virtual clock for each.
//
//   Compute      a file without a name: | words | moments | buffer |
//   ShapeOnly                           | words | moments |   and for the buffer addresses alone
//
// Tensors over it are made of its addresses (at::from_blob), as CUDA's are.
#pragma once

#include "memory/card_memory.h"

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace anyrig::virtual_gpu {

struct PieceSizes {
  size_t buffer_bytes;
  size_t signal_bytes;

  bool operator==(const PieceSizes& other) const {
    return buffer_bytes == other.buffer_bytes && signal_bytes == other.signal_bytes;
  }
};

class SharedPiece : public std::enable_shared_from_this<SharedPiece> {
 public:
  // A new one on `device`, which counts there. Raises RuntimeError without room.
  SharedPiece(PieceSizes sizes, c10::DeviceIndex device);
  // That of another process, by its descriptor there; a tensor of it is one of `device`. Raises
  // torch.AcceleratorError, "invalid resource handle", if that process has none of these sizes.
  SharedPiece(PieceSizes sizes, c10::DeviceIndex device, int64_t process, int file);
  ~SharedPiece();
  SharedPiece(const SharedPiece&) = delete;
  SharedPiece& operator=(const SharedPiece&) = delete;

  PieceSizes sizes() const { return sizes_; }
  c10::DeviceIndex device() const { return device_; }
  int file() const { return file_; }
  void* buffer() const { return buffer_; }
  uint32_t* words() const { return static_cast<uint32_t*>(mapped_); }
  // Of the word with that index.
  double* moment(size_t word) const;

  // Whether `address` lies in it: in its buffer, or where its words are.
  bool has(const void* address) const;
  bool has_word(const void* address) const;

 private:
  void enlist();

  PieceSizes sizes_;
  c10::DeviceIndex device_;
  std::optional<CardMemory> card_memory_;
  int file_ = -1;
  void* mapped_ = nullptr;
  void* buffer_ = nullptr;
};

// Addresses without memory, `bytes` of them, which nothing may read or write.
void* reserve_addresses(size_t bytes);
void free_addresses(void* first, size_t bytes);

// The piece that `address` lies in, of this process's or of another's; null if there is none.
std::shared_ptr<const SharedPiece> piece_of(const void* address);
// Its device.
std::optional<c10::DeviceIndex> device_of_piece(const void* address);

} // namespace anyrig::virtual_gpu
