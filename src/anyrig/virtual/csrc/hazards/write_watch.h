// Which kernels wrote to memory that autograd saved, and at which line of the program.
//
//   saved_value.h   WatchedMemory ── from the save to the last use ──┐
//                                                                    ▼
//   kernels         note_write ── address, bytes, line ──▶ the writes of that memory
//
// PyTorch's version counters miss writes through `.data`, through a tensor made with `set_`, and by
// collectives. A kernel is called for each of them, with the address that it writes to. Memory that
// no WatchedMemory names costs a look into a map; without a watch, a write costs one comparison.
//
// All functions may be called by any thread, with or without the GIL, and hold no lock on return.
#pragma once

#include <ATen/core/TensorBase.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// Returns whether a tensor has elements, whose bytes an Extent describes. A nested tensor has to be
// contiguous: the parts of any other one lie anywhere in its memory, and are not watched.
bool has_extent(const at::TensorBase& tensor);

// The bytes of a tensor for which has_extent holds.
struct Extent {
  uintptr_t begin = 0; // of the first byte
  uintptr_t end = 0; // past the last byte
  int64_t item_bytes = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides; // in elements

  static Extent of(const at::TensorBase& tensor);
  // Returns whether the two have a byte in common.
  bool overlaps(const Extent& other) const;
};

struct Write {
  uint64_t number; // writes are numbered in their order
  Extent extent;
  int32_t line; // as in time/origin.h
  std::string operator_name;
};

extern std::atomic<bool> write_watch_is_on;

inline bool watches_writes() {
  return write_watch_is_on.load(std::memory_order_relaxed);
}
void watch_writes(bool on);

// Remembers that the calling thread's operator has written to `tensor`, if its memory is watched.
// Takes the GIL if so.
void note_write(const at::TensorBase& tensor);
// Forgets the memory at `address`: it is about to be freed, although a tensor still names it.
void note_resize(const void* address);

// Watches the memory of one saved tensor while it lives.
class WatchedMemory {
 public:
  // `tensor` is a dense virtual tensor, for which has_extent holds.
  explicit WatchedMemory(const at::TensorBase& tensor);
  // Returns the first write to bytes of the tensor since this object was made.
  std::optional<Write> first_write() const;

 private:
  struct Writes;
  friend class WriteTable;

  uint64_t made_after_; // the number of the last write before
  Extent extent_;
  std::shared_ptr<Writes> writes_;
};

} // namespace anyrig::virtual_gpu
