// The symmetric memory of all ranks of a group, as torch's rendezvous joins it.
//
//   rank 0  | signal pad | buffer 0 |      each rank maps the memory of all ranks, at addresses of
//   rank 1  | signal pad | buffer 1 |      its own
//
// Word [channel * size + b] of rank a's signal pad is for signals from rank b to rank a.
#pragma once

#include "extras/symmetric/shared_piece.h"
#include "time/collective_time.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// What one rank publishes for the rendezvous.
struct Member {
  int64_t process;
  int64_t file;
  int64_t device; // the index in its process
  int64_t node;
  int64_t position; // of the device in the whole rig
  int64_t has_multicast;
  uint64_t buffer_bytes;
  uint64_t signal_bytes;
};

class Peers {
 public:
  // Performs the rendezvous of `own` with the other ranks of the process group `name`; all ranks
  // must call it. Raises RuntimeError if two ranks share a GPU, the sizes differ, or the ranks are
  // on several nodes.
  static std::shared_ptr<Peers> rendezvous(
      std::shared_ptr<SharedPiece> own,
      const std::string& name);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(pieces_.size()); }
  c10::DeviceIndex device() const { return pieces_[rank_]->device(); }
  const SharedPiece& piece(int rank) const { return *pieces_[rank]; }
  const std::vector<Place>& places() const { return places_; }
  // Arrays in GPU memory with the address of each rank's buffer, and of each rank's signal pad.
  void** buffer_pointers() const { return static_cast<void**>(buffer_pointers_); }
  void** signal_pad_pointers() const { return static_cast<void**>(signal_pad_pointers_); }
  // The address at which a GPU's kernels reach all buffers at once; null without NVSwitch.
  void* multicast() const { return multicast_; }

  // Signals block the host for up to `timeout_ms`, or for the group's timeout if that is 0. `now`
  // is this rank's virtual time. Each function returns the latest of `now` and the virtual times of
  // the ranks that it waited for.
  double put_signal(int peer, int channel, size_t timeout_ms, double now) const;
  double wait_signal(int peer, int channel, size_t timeout_ms, double now) const;
  // Signals all other ranks and waits for their signals. Errors name the operator `what`.
  double barrier(const char* what, int channel, size_t timeout_ms, double now) const;

 private:
  Peers() = default;
  struct SignalCall describe_signal(const char* what, int peer, int channel, size_t timeout_ms)
      const;
  void allocate_pointers();

  int rank_ = 0;
  std::vector<std::shared_ptr<SharedPiece>> pieces_; // by rank
  std::vector<int64_t> processes_;
  std::vector<Place> places_;
  std::chrono::milliseconds group_timeout_{0};
  void* buffer_pointers_ = nullptr;
  void* signal_pad_pointers_ = nullptr;
  void* multicast_ = nullptr;
};

// Returns whether kernels of `device` can reach several GPUs' memory at once: on Hopper and later
// with an NVSwitch, unless TORCH_SYMM_MEM_DISABLE_MULTICAST is set.
bool device_has_multicast(c10::DeviceIndex device);

// Returns a byte tensor over this rank's signal pad that keeps `peers` alive.
at::Tensor signal_pad_tensor(const std::shared_ptr<Peers>& peers);
// Returns the peers that a tensor of `signal_pad_tensor` keeps alive; null for any other tensor.
std::shared_ptr<Peers> peers_of_signal_pad(const at::Tensor& tensor);

} // namespace anyrig::virtual_gpu
