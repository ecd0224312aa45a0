// The few values that ShapeOnly does know: small tensors that the program brought from the host, and
// what it computes from such alone. Programs steer themselves by them: sizes and pickled objects
// that ranks exchange, states of generators, counters, flags.
//
//   host ──copy──> known ──operator on known tensors──> known ──.item(), copy──> host
//                    │
//                    └── anything else that writes to it: forgotten
//
// A memory knows its bytes up to a limit (DeviceMemory::known_bytes), so that pieces written one
// after another add up and nothing else has to be recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace anyrig::virtual_gpu {

// A CPU tensor over the values of a virtual tensor, or an undefined one where any is unknown. It
// must not outlive the virtual tensor's memory.
at::Tensor known_values(const at::TensorBase& tensor);

// A CPU tensor to write all values of a virtual tensor to, which are known from then on; undefined
// where they cannot be kept, in which case they are forgotten.
at::Tensor values_to_write(const at::TensorBase& tensor);

// Something wrote to `tensor` of which only the shape is known. Any thread may call it: the bytes
// stay where they are.
void forget_values(const at::TensorBase& tensor);

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
