// Calls that ShapeOnly computes although it holds no data: those whose tensors are all known
// (memory/known_values.h) and small. One rule for all of PyTorch's operators:
//
//   The values are computed by the CPU kernel, as in Compute, if every tensor that the call reads
//   is known, and if the operator is deterministic. Otherwise those of every tensor that the call
//   writes to are forgotten.
//
// The kernel gets copies of the tensors that it writes to. A kernel that fails therefore changes no
// known value, and neither does a write to memory that a lazy clone shares.
#pragma once

#include "dispatch/operator_plan.h"
#include "memory/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// Returns what a call of `op` does to known values.
ValueRule value_rule_of(const c10::OperatorHandle& op);

// Returns why a call cannot be computed: why the first tensor that it reads is unknown.
WhyUnknown why_not_known(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments);

class KnownCall {
 public:
  // Returns none if the operator's rule or an unknown value forbids the computation.
  static std::optional<KnownCall> make(
      const c10::OperatorHandle& op,
      const OperatorPlan& plan,
      c10::ArrayRef<c10::IValue> arguments);

  // Runs the CPU kernel and makes its values those of the tensors that the call wrote to, and of
  // `results`, as the Meta kernel made them. Returns none if it did, and why not if there are too
  // many or if the kernel fails; then it changed no value.
  std::optional<WhyUnknown> compute(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> results);

  // Runs the CPU kernel of an operator whose result sizes depend on values. Returns its results,
  // which nothing else uses; none if the kernel fails. Afterwards, `sizes_of_written` has the sizes
  // that the kernel gave to a tensor, and `store_written` its values.
  std::optional<torch::jit::Stack> run(const c10::OperatorHandle& op);
  std::optional<at::IntArrayRef> sizes_of_written(const at::Tensor& owner) const;
  void store_written();

 private:
  struct Written {
    at::Tensor owner;
    at::Tensor values; // undefined until the kernel runs if the operator does not read it
  };

  explicit KnownCall(const OperatorPlan& plan) : plan_(&plan) {}
  bool add(const c10::IValue& value, const ArgumentPlan& argument);
  std::optional<at::Tensor> values_for(const at::Tensor& tensor, const ArgumentPlan& argument);
  bool writes_to_shared_memory();
  bool has_room(c10::ArrayRef<c10::IValue> results) const;
  void put_written();

  const OperatorPlan* plan_;
  torch::jit::Stack arguments_;
  std::vector<Written> written_;
  // For each written tensor, its argument and its index in a list, or -1 without a list.
  std::vector<std::pair<size_t, int64_t>> places_;
  c10::SmallVector<const c10::StorageImpl*, 4> storages_; // one for each tensor of the GPU
  size_t bytes_ = 0;
};

} // namespace anyrig::virtual_gpu
