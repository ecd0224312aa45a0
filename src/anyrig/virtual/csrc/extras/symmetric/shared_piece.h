// One rank's symmetric memory, as one process maps it: a buffer, a signal pad (signals.h), and the
// virtual time at which each word of the pad was set.
//
//   Compute      an unnamed file: | signal pad | times | buffer |
//   ShapeOnly    an unnamed file: | signal pad | times |, and a range of addresses for the buffer
//
// Tensors over the memory are made from its addresses (at::from_blob), as CUDA's are.
#pragma once

#include "memory/gpu_memory.h"

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
  // Allocates the piece, which counts as used memory of `device`. Raises RuntimeError if the device
  // or the host has no room.
  SharedPiece(PieceSizes sizes, c10::DeviceIndex device);
  // Maps the piece of another process by its file descriptor there. Tensors over it belong to
  // `device`. Raises torch.AcceleratorError, "invalid resource handle", if that process has no
  // piece of these sizes.
  SharedPiece(PieceSizes sizes, c10::DeviceIndex device, int64_t process, int file);
  ~SharedPiece();
  SharedPiece(const SharedPiece&) = delete;
  SharedPiece& operator=(const SharedPiece&) = delete;

  PieceSizes sizes() const { return sizes_; }
  c10::DeviceIndex device() const { return device_; }
  int file() const { return file_; }
  void* buffer() const { return buffer_; }
  uint32_t* signal_pad() const { return static_cast<uint32_t*>(mapped_); }
  // The virtual time at which the sender set word `word` of the signal pad.
  double* sent_time(size_t word) const;

  // Returns whether `address` lies in the buffer or the signal pad.
  bool contains(const void* address) const;
  bool signal_pad_contains(const void* address) const;

 private:
  void set_buffer_and_register();

  PieceSizes sizes_;
  c10::DeviceIndex device_;
  std::optional<GpuMemory> gpu_memory_;
  int file_ = -1;
  void* mapped_ = nullptr;
  void* buffer_ = nullptr;
};

// Reserves `bytes` of address space without memory, which nothing may read or write.
void* reserve_addresses(size_t bytes);
void free_addresses(void* first, size_t bytes);

// Returns the piece that contains `address`, of this or another process; null if there is none.
std::shared_ptr<const SharedPiece> piece_of(const void* address);
// Returns the device of the piece that contains `address`.
std::optional<c10::DeviceIndex> device_of_piece(const void* address);

} // namespace anyrig::virtual_gpu
