// Calls that ShapeOnly has seen before. Many of PyTorch's Meta kernels are written in Python and take
// about a millisecond, such as those of normalizations and of optimizers on lists of tensors. A
// training step repeats its calls, layer by layer and step by step, so each runs once:
//
//   arguments ──▶ RepeatedCall, all that a Meta kernel sees of them
//                   │ seen before            │ new
//                   ▼                        ▼
//                 new Meta tensors like    the Meta kernel, whose results are kept if they are
//                 those of the first call  new tensors or arguments, and no argument has changed
//
// Thread-safe.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {

using CallDescription = std::vector<int64_t>;

class RepeatedCall {
 public:
  // Describes a call of a plan that lives as long as the process. The `arguments` are those of its
  // Meta kernel. Returns none for a call whose results may follow from anything else.
  static std::optional<RepeatedCall> make(
      const OperatorPlan& plan,
      c10::ArrayRef<c10::IValue> arguments);

  // Replaces the arguments, the last of `stack`, by the results of an earlier call like this one.
  // Returns false if there was none.
  bool answer(torch::jit::Stack& stack) const;

  // Keeps the results with which the Meta kernel has replaced the arguments.
  void keep(const torch::jit::Stack& stack);

 private:
  explicit RepeatedCall(const OperatorPlan& plan) : plan_(&plan) {}
  bool add(const c10::IValue& value);
  bool add(const at::Tensor& tensor);
  void describe(const at::Tensor& tensor);
  CallDescription description() const;

  const OperatorPlan* plan_;
  c10::SmallVector<at::Tensor, 8> tensors_; // those among the arguments, in their order
  // The other arguments, and how many tensors come between them.
  c10::SmallVector<int64_t, 32> values_;
  c10::SmallVector<int64_t, 64> geometry_; // of the tensors
  std::unordered_map<const c10::StorageImpl*, int64_t> storages_; // and the first tensor in each
};

} // namespace anyrig::virtual_gpu
