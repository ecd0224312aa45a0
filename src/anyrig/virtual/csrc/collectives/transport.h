// Moves the bytes of a group from rank to rank, with gloo's messages between two ranks.
//
// gloo's own collectives are not used. They end the process if sizes differ, they cover only a part
// of NCCL's collectives, and a rank notices a dead rank that is not its neighbour only at the
// timeout. With messages, every rank is connected to every other rank and notices a lost rank
// itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

using Moment = std::chrono::steady_clock::time_point;

// A contiguous CPU tensor to send to `peer` or to receive from it.
struct Message {
  int peer;
  at::Tensor data;
};

// On one channel, messages between two ranks arrive in the order in which they were sent.
enum class Channel : int { Collectives = 1, Messages = 2 };

// The error of an exchange that did not complete.
struct TransportError : std::exception {
  enum class Reason { TimeLimit, Closed, Lost };

  TransportError(Reason reason, std::vector<int> peers, std::string gloo_text)
      : reason(reason), peers(std::move(peers)), gloo_text(std::move(gloo_text)) {}
  const char* what() const noexcept override { return gloo_text.c_str(); }

  Reason reason;
  // The ranks whose messages failed.
  std::vector<int> peers;
  std::string gloo_text;
};

class Transport {
 public:
  explicit Transport(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

  // Starts all sends and receives, then waits until all are done. Skips empty messages. Throws
  // TransportError. Needs no GIL.
  void exchange(
      c10::ArrayRef<Message> sends,
      c10::ArrayRef<Message> receives,
      Channel channel,
      Moment deadline);

  // Wakes every thread that waits in `exchange`, and makes later calls of `exchange` throw.
  void close();
  // Closes the connections, which the other ranks notice. No thread may be in `exchange`.
  void disconnect() { gloo_.reset(); }

  const c10::intrusive_ptr<c10d::Backend>& gloo() const { return gloo_; }

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  // gloo has no connection from a rank to itself.
  void send_to_self(const at::Tensor& data);
  // Throws TransportError.
  void receive_from_self(const at::Tensor& data, Moment deadline);

  void add_pending(const Works& works);
  void remove_pending(const Works& works);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::mutex mutex_;
  bool closed_ = false;
  // The works that `exchange` waits for.
  std::set<c10d::Work*> pending_;
  // What this rank has sent to itself and not received yet.
  std::deque<at::Tensor> to_self_;
  std::condition_variable changed_; // `to_self_` or `closed_`
};

} // namespace anyrig::virtual_gpu
