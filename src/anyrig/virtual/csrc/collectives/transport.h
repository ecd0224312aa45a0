// How the bytes of a group go from rank to rank: gloo's messages between two ranks.
//
// gloo's own collectives are not used. They end the process where sizes disagree, a rank that does
// not neighbour a dead one hears of its death only when its time is up, and they lack much of what
// NCCL has. With messages alone, every rank is connected to every other one, so each notices by
// itself who is gone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

using Moment = std::chrono::steady_clock::time_point;

// A tensor of the host, contiguous, that goes to `peer` or comes from it.
struct Message {
  int peer;
  at::Tensor data;
};

// Messages of one channel between two ranks arrive in the order in which they were sent.
enum class Channel : int { Collectives = 1, Messages = 2 };

// An exchange that did not come to its end.
struct TransportError : std::exception {
  enum class Reason { TimeLimit, Closed, Lost };

  TransportError(Reason reason, std::vector<int> peers, std::string gloo_text)
      : reason(reason), peers(std::move(peers)), gloo_text(std::move(gloo_text)) {}
  const char* what() const noexcept override { return gloo_text.c_str(); }

  Reason reason;
  // The ranks that nothing came from.
  std::vector<int> peers;
  std::string gloo_text;
};

class Transport {
 public:
  explicit Transport(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}

  // Sends and receives all of these at once, and returns when all are done. Empty messages do not
  // travel. Throws TransportError. Needs no GIL.
  void exchange(
      c10::ArrayRef<Message> gives,
      c10::ArrayRef<Message> takes,
      Channel channel,
      Moment deadline);

  // Wakes every thread that waits here, and refuses what comes later.
  void close();
  // Gives up the connections, by which the other ranks notice; no thread may be left here.
  void disconnect() { gloo_.reset(); }

  const c10::intrusive_ptr<c10d::Backend>& gloo() const { return gloo_; }

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  void watch(const Works& works);
  void forget(const Works& works);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::mutex mutex_;
  bool closed_ = false;
  // What is under way, to be woken.
  std::set<c10d::Work*> waited_for_;
};

} // namespace anyrig::virtual_gpu
