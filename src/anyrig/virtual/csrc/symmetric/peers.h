// The pieces of symmetric memory that the ranks of a group brought together: torch's rendezvous.
//
//   rank 0  | words | buffer 0 |          each rank maps the pieces of all, and finds the buffers at
//   rank 1  | words | buffer 1 |          addresses of its own
//
// A word of rank a's piece, on channel c, is for signals from rank b: words[c * size + b].
#pragma once

#include "symmetric/shared_piece.h"
#include "time/collective_time.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// What each rank tells the others.
struct Member {
  int64_t process;
  int64_t file;
  int64_t device; // as its process numbers it
  int64_t node;
  int64_t position; // in the whole rig
  int64_t has_multicast;
  uint64_t buffer_bytes;
  uint64_t signal_bytes;
};

class Peers {
 public:
  // Meets the other ranks of the process group `name`; all of them call this. Raises RuntimeError
  // where CUDA does: ranks that share a card, and sizes that differ.
  static std::shared_ptr<Peers> meet(std::shared_ptr<SharedPiece> own, const std::string& name);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(pieces_.size()); }
  c10::DeviceIndex device() const { return pieces_[rank_]->device(); }
  const SharedPiece& piece(int rank) const { return *pieces_[rank]; }
  const std::vector<Place>& places() const { return places_; }
  // Arrays of addresses in the card's memory: of the buffers, and of the words.
  void** buffers_on_card() const { return static_cast<void**>(buffers_on_card_); }
  void** words_on_card() const { return static_cast<void**>(words_on_card_); }
  // Where a card's kernels reach all buffers at once; null without NVSwitch.
  void* multicast() const { return multicast_; }

  // The waits are those of the host, up to `timeout_ms`, or the group's limit where that is 0.
  // `now` is this rank's moment on the virtual clock, and they return the latest of all concerned.
  double put(int peer, int channel, size_t timeout_ms, double now) const;
  double take(int peer, int channel, size_t timeout_ms, double now) const;
  // With all others. `what` is the operator that an error names.
  double meet_all(const char* what, int channel, size_t timeout_ms, double now) const;

 private:
  Peers() = default;
  struct SignalCall call(const char* what, int peer, int channel, size_t timeout_ms) const;
  void put_arrays_on_card();

  int rank_ = 0;
  std::vector<std::shared_ptr<SharedPiece>> pieces_; // by rank
  std::vector<int64_t> processes_;
  std::vector<Place> places_;
  std::chrono::milliseconds limit_{0};
  void* buffers_on_card_ = nullptr;
  void* words_on_card_ = nullptr;
  void* multicast_ = nullptr;
};

// Whether kernels of that card can reach several cards' memory at once: Hopper and later behind an
// NVSwitch. Not with TORCH_SYMM_MEM_DISABLE_MULTICAST.
bool device_has_multicast(c10::DeviceIndex device);

// Keeps the peers alive as long as a tensor over one of their words is.
at::Tensor tensor_of_words(const std::shared_ptr<Peers>& peers);
// The peers that such a tensor keeps; null for any other.
std::shared_ptr<Peers> peers_of_words(const at::Tensor& tensor);

} // namespace anyrig::virtual_gpu
