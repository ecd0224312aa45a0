// One collective or message of a group: a thread of the group runs it (communicator.h), and threads
// of the program wait for it.
#pragma once

#include "collectives/failure.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

class Transfer {
 public:
  // Runs the transfer. Returns the virtual time at which the transfer ends, given that earlier work
  // on its stream ends at `free_at`.
  using Body =
      std::function<double(const CollectiveCall& call, const c10::Stream& stream, double free_at)>;

  struct Parts {
    CollectiveCall call;
    Body body;
    // The CUDA stream on which NCCL's kernel would run.
    c10::Stream stream;
    // The tensors that the body reads and writes.
    std::vector<at::Tensor> tensors;
    // Whether wait() also moves the host to the end of the transfer on the virtual clock, as for a
    // barrier.
    bool blocks_host = false;
    // Whether this is a send. Its data was copied, so nothing waits until it arrives.
    bool is_send = false;
    // The virtual time at which earlier work of the device is done; the transfer starts no earlier.
    double ready = 0;
    // Called by the thread that ends the transfer, before waiting threads wake up.
    std::function<void(const Transfer& transfer, bool is_success)> on_end = {};
  };

  explicit Transfer(Parts parts) : parts_(std::move(parts)) {}

  // Runs the body and returns the virtual time at which the transfer ends. Keeps the tensors for a
  // thread of the program to drop, since they may belong to Python.
  double run(double free_at);
  // Ends a transfer that will not run.
  void fail(const std::string& reason);

  bool has_ended() const;
  std::exception_ptr error() const;

  // Blocks the host until the transfer has ended, with or without an error. Returns false if
  // `deadline` passed first.
  bool join(std::optional<Moment> deadline = std::nullopt);
  // Raises the error of an ended transfer, or else makes the current stream wait for its end on the
  // virtual clock.
  void finish_wait();
  // Waits until the transfer has ended. Raises its error if no thread has seen it yet.
  void join_and_raise_unseen();
  // Drops the tensors of an ended transfer, as ProcessGroupNCCL does once the program has waited.
  void release();

  const CollectiveCall& call() const { return parts_.call; }
  const c10::Stream& stream() const { return parts_.stream; }
  bool is_send() const { return parts_.is_send; }
  // The duration on the virtual clock.
  double seconds() const { return ended_ - started_; }

 private:
  void end(std::exception_ptr error);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Parts parts_;
  bool has_ended_ = false;
  std::exception_ptr error_;
  bool error_seen_ = false;
  double started_ = 0;
  double ended_ = 0;
};

} // namespace anyrig::virtual_gpu
