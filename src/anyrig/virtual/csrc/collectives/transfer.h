// One collective or message under way, as the group holds it: what runs in a thread of the group
// (communicator.h), and how a thread of the program waits for it.
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
  // Returns the moment of the virtual clock at which it is done, given the one at which what came
  // before on its stream is.
  using Body =
      std::function<double(const CollectiveCall& call, const c10::Stream& stream, double free_from)>;

  struct Parts {
    CollectiveCall call;
    Body body;
    // The device's stream that NCCL's kernel would run on.
    c10::Stream stream;
    // What the body reads and writes.
    std::vector<at::Tensor> tensors;
    // A barrier holds up the host, too.
    bool blocks_host = false;
    // What is sent was copied; nothing waits for it to arrive.
    bool is_send = false;
    // The moment at which the work before it on the device is done: it begins no earlier.
    double ready = 0;
    // Called before anyone hears of the end, by the thread that ends it.
    std::function<void(const Transfer& transfer, bool is_success)> on_end = {};
  };

  explicit Transfer(Parts parts) : parts_(std::move(parts)) {}

  // Runs the body, and returns the moment at which it is done. What it holds is left to be dropped
  // by a thread of the program: a tensor may belong to Python.
  double run(double free_from);
  // Ends one that will not run.
  void fail(const std::string& reason);

  bool has_ended() const;
  std::exception_ptr error() const;

  // Blocks the host until it has ended, well or not. False if `deadline` came first.
  bool join(std::optional<Moment> deadline = std::nullopt);
  // Of one that has ended: raises its error, or has the current stream go on at its end.
  void take_over();
  // Waits, and raises the error that nobody has seen yet.
  void join_and_raise_unseen();
  // Drops the tensors of one that has ended, as NCCL's group does when the program has waited.
  void release();

  const CollectiveCall& call() const { return parts_.call; }
  const c10::Stream& stream() const { return parts_.stream; }
  bool is_send() const { return parts_.is_send; }
  // On the virtual clock.
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
