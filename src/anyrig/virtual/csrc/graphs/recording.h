// The operator calls of a CUDA graph: recorded once, run again at each replay on the same memory.
//
// A capture computes, for the shapes and because it is harmless, and puts back what it wrote to at
// the end: on a card it computes nothing. A replay calls the operators again with ghosts (ghosts.h)
// of the tensors of the capture and copies their results to where those of the capture lay. Bytes
// are counted in the capture alone, as on a card.
#pragma once

#include "graphs/ghosts.h"
#include "random/generator.h"
#include "random/philox.h"
#include "time/clock.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// Numbers that a call drew: from which generator, and where in the graph's share of its numbers.
struct Draw {
  c10::intrusive_ptr<VirtualGenerator> generator;
  c10::intrusive_ptr<PhiloxState> state;
  uint64_t offset;
};

class Recording {
 public:
  // Runs a call of a capture and records it.
  void run(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack,
      c10::DeviceIndex device);

  // What is recorded up to `end_body` runs if `predicate` is true when a replay comes to it.
  void begin_body(const at::Tensor& predicate);
  void end_body();

  // The capture is over.
  void finish();

  // Runs all calls again; `start_of` says where the numbers of a generator's state start now.
  void replay(const std::function<PhiloxPosition(const PhiloxState&)>& start_of);

  void clear();

  // What a card would have as nodes.
  size_t size() const { return size_; }
  std::vector<std::string> names() const;

 private:
  struct Call {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;
    std::vector<c10::IValue> results; // where they go; none of what lies in an argument
    c10::DeviceIndex device;
    std::vector<Draw> draws;
  };

  // Calls that may not run, from `first` to before `end`. One may lie in another.
  struct Body {
    at::Tensor predicate;
    size_t first;
    size_t end;
  };

  void replay(
      const Call& call, const std::function<PhiloxPosition(const PhiloxState&)>& start_of) const;

  std::mutex mutex_; // backward runs in a thread of its own
  Ghosts ghosts_;
  std::vector<Call> calls_;
  std::vector<Body> bodies_; // as they begin
  std::vector<size_t> open_bodies_;
  size_t size_ = 0;
};

// Within `Recording::run`: notes numbers that the call draws.
void note_draw(Draw draw);

} // namespace anyrig::virtual_gpu
