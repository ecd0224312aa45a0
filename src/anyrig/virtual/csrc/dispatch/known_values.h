// The few values that ShapeOnly does know: small tensors that the program brought from the host, and
// what it computes from such alone. Programs steer themselves by them: sizes and pickled objects
// that ranks exchange, states of generators, counters, flags.
//
//   host ──copy──> known ──operator on known tensors──> known ──.item(), copy──> host
//                    │
//                    └── anything else that writes to it: forgotten
//
// A memory knows its bytes up to a limit (KnownValues::bytes), so that pieces written one after
// another add up and nothing else has to be recorded.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// A CPU tensor over the values of a virtual tensor, which it keeps; an undefined one where any is
// unknown.
at::Tensor known_values(const at::TensorBase& tensor);

// A CPU tensor to write all values of a virtual tensor to, which are known from then on; undefined
// where they cannot be kept, in which case they are forgotten.
at::Tensor values_to_write(const at::TensorBase& tensor);

// Something wrote to `tensor` of which only the shape is known.
void forget_values(const at::TensorBase& tensor);

// What is known of some tensors, to be forgotten later: by any thread, whatever the program has
// done to the tensors by then.
class ValuesInDoubt {
 public:
  explicit ValuesInDoubt(const std::vector<at::Tensor>& tensors);
  void forget() const;

 private:
  std::vector<c10::intrusive_ptr<KnownValues>> values_;
};

// One call of an operator in ShapeOnly whose tensors are all known and small.
class KnownCall {
 public:
  // None where a value is unknown, random numbers are drawn, or only views are made, which share
  // what is known with what they view.
  static std::optional<KnownCall> of(
      const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

  // Runs the CPU's kernel and returns its results; what it writes to is written. None if it failed.
  std::optional<torch::jit::Stack> run(const c10::OperatorHandle& op);

 private:
  torch::jit::Stack arguments_;
};

// Writes the results of a known call to those that the Meta kernel made.
void give_values(const torch::jit::Stack& values, c10::ArrayRef<c10::IValue> results);

} // namespace anyrig::virtual_gpu
