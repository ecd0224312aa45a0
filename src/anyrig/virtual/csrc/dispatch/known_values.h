// The few values that ShapeOnly knows: small tensors that the program copied from the host, and
// results computed from them alone. Programs branch on such values: sizes and pickled objects that
// ranks exchange, generator states, counters, flags.
//
//   host ──copy──> known ──operator on known tensors──> known ──.item(), copy──> host
//                    │
//                    └── any other write to the tensor: forgotten
//
// Of each allocation the values are known up to a byte limit (KnownValues::bytes). Consecutive
// writes extend the limit, so a single number describes what is known.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// Returns a CPU tensor that shares the values of a virtual tensor and keeps them alive; an
// undefined tensor if any value is unknown.
at::Tensor known_values(const at::TensorBase& tensor);

// Returns a CPU tensor for the caller to write all values of `tensor` to, and marks them as known.
// If they cannot be kept, forgets them and returns an undefined tensor.
at::Tensor values_to_write(const at::TensorBase& tensor);

// Marks the values of `tensor` as unknown, after a write whose values are unknown.
void forget_values(const at::TensorBase& tensor);

// The known values of some tensors, to forget later: from any thread, and whatever the program did
// to the tensors in the meantime.
class ValuesInDoubt {
 public:
  explicit ValuesInDoubt(const std::vector<at::Tensor>& tensors);
  void forget() const;

 private:
  std::vector<c10::intrusive_ptr<KnownValues>> values_;
};

// An operator call in ShapeOnly whose tensors are all known and small.
class KnownCall {
 public:
  // Returns none if a value is unknown, if the operator draws random numbers, or if it only makes
  // views, which share the known values of their base.
  static std::optional<KnownCall> of(
      const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

  // Runs the CPU kernel and returns its results; in-place operators write to the known values.
  // Returns none if the kernel fails.
  std::optional<torch::jit::Stack> run(const c10::OperatorHandle& op);

 private:
  torch::jit::Stack arguments_;
};

// Copies the results of a known call to the results of the Meta kernel.
void store_values(const torch::jit::Stack& values, c10::ArrayRef<c10::IValue> results);

} // namespace anyrig::virtual_gpu
