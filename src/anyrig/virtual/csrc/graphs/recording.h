// The operator calls of a CUDA graph: recorded during the capture, and run again on the same memory
// at each replay.
//
// On a GPU, a capture computes nothing. Here a capture computes, to determine shapes, and restores
// the memory that it wrote to at its end. A replay calls the operators with ghosts (ghosts.h) of
// the captured tensors and copies the results to the memory of the captured results. Only the
// capture allocates counted memory, as on a GPU.
#pragma once

#include "graphs/ghosts.h"
#include "random/generator.h"
#include "random/philox.h"
#include "time/clock.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

// The numbers that a call drew: the generator, its state, and the offset in the graph's share.
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

  // Calls recorded between `begin_body` and `end_body` run only if `predicate` is true at that
  // point of a replay.
  void begin_body(const at::Tensor& predicate);
  void end_body();

  // Ends the capture.
  void finish();

  // Runs all calls again. `start_of` returns the current start of a state's numbers.
  void replay(const std::function<PhiloxPosition(const PhiloxState&)>& start_of);

  void clear();

  // The number of nodes that the graph would have on a GPU.
  size_t size() const { return size_; }
  std::vector<std::string> names() const;

 private:
  struct Call {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;
    std::vector<c10::IValue> results; // destinations; undefined for results that are arguments
    c10::DeviceIndex device;
    std::vector<Draw> draws;
  };

  // Calls from `first` to `end` (exclusive) that run conditionally. Bodies may be nested.
  struct Body {
    at::Tensor predicate;
    size_t first;
    size_t end;
  };

  void replay(const Call& call, const std::function<PhiloxPosition(const PhiloxState&)>& start_of)
      const;

  void note_written(
      const c10::FunctionSchema& schema,
      const std::vector<c10::IValue>& given,
      c10::ArrayRef<c10::IValue> results);

  std::mutex mutex_; // the backward pass runs in its own thread
  Ghosts ghosts_;
  std::vector<Call> calls_;
  std::vector<Body> bodies_; // in the order of `first`
  std::vector<size_t> open_bodies_;
  // In ShapeOnly: the address ranges of the memory that a replay writes to.
  std::set<std::pair<uintptr_t, uintptr_t>> written_;
  size_t size_ = 0;
};

// Records the numbers that the current call of `Recording::run` draws.
void record_draw(Draw draw);

} // namespace anyrig::virtual_gpu
