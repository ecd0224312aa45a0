// The kernel of a call: the host's on twins or, in ShapeOnly, Meta's.
#include "dispatch/operator_call.h"

#include "dispatch/device_assert.h"
#include "dispatch/integer_division.h"
#include "dispatch/kernel_names.h"
#include "dispatch/meta_errors.h"
#include "dispatch/repeated_call.h"
#include "dispatch/unknown_sizes.h"
#include "dispatch/widening.h"
#include "memory/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace anyrig::virtual_gpu {

void OperatorCall::run_kernel() {
  // Operators called inside a CUDA kernel do not exist, so the profiler must not record those of
  // the CPU kernel. Check for a profiler first: disabling its callbacks takes half a microsecond.
  std::optional<at::DisableRecordFunctionGuard> unrecorded;
  if (C10_UNLIKELY(at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value())) {
    unrecorded.emplace();
  }
  if (shape_only()) {
    run_meta_kernel();
  } else if (plan_.makes_tensors) {
    KernelScope scope(device_.index());
    run_kernel_of(host_key_);
  } else {
    run_kernel_of(host_key_);
  }
}

void OperatorCall::run_kernel_of(c10::DispatchKey key) {
  if (key == host_key_ && !plan_.widened.empty() &&
      needs_widening(plan_.widened, op_.schema(), *stack_)) {
    run_widened(plan_.widened, op_.schema(), *stack_, [&] { call_kernel_of(key); });
  } else {
    call_kernel_of(key);
  }
}

void OperatorCall::call_kernel_of(c10::DispatchKey key) {
  if (C10_LIKELY(plan_.choose_layout == nullptr && !(shape_only() && plan_.is_pointwise))) {
    call_kernel(c10::DispatchKeySet(key));
    return;
  }
  const ResultLayout layout = result_layout();
  call_kernel(c10::DispatchKeySet(key));
  const size_t count = plan_.returned_argument.size();
  layout.apply(stack_->data() + stack_->size() - count, count);
}

void OperatorCall::call_kernel(c10::DispatchKeySet keys) {
  if (plan_.divides_integers != nullptr && keys.has(c10::DispatchKey::CPU) &&
      plan_.divides_integers(arguments())) {
    replace_zero_divisors(argument(0), argument(1));
  }
  // Read before the kernel, which moves its arguments away.
  const bool checks_repeats = plan_.checks_repeats && stack_->back().isNone();
  try {
    if (plan_.host_kernel.has_value()) {
      plan_.host_kernel->callBoxed(op_, keys, stack_);
    } else {
      op_.redispatchBoxed(keys, stack_);
    }
  } catch (const c10::Error& error) {
    if (!checks_repeats) {
      raise_if_device_assert(error, plan_.name, device_);
    }
    raise_with_cuda_name(error);
    throw;
  }
}

ResultLayout OperatorCall::result_layout() {
  if (plan_.choose_layout != nullptr) {
    return plan_.choose_layout(arguments());
  }
  if (!parts_.empty()) {
    return {};
  }
  c10::SmallVector<at::Tensor, 4> read;
  for (const auto& operand : operands_) {
    if (!operand.plan.is_written) {
      read.push_back(operand.twin);
    } else if (operand.twin.numel() > 0) {
      return {}; // an output keeps its layout
    }
  }
  return pointwise_layout(read);
}

bool OperatorCall::run_on_values() {
  auto results = known_->run(op_);
  if (!results.has_value()) {
    known_.reset(); // the kernel has used up its arguments
    return false;
  }
  for (auto& operand : operands_) {
    const auto sizes = known_->sizes_of_written(operand.owner);
    if (sizes.has_value() && operand.twin.sizes() != *sizes) {
      operand.twin.resize_(*sizes);
    }
  }
  torch::jit::drop(*stack_, argument_count_);
  std::move(results->begin(), results->end(), std::back_inserter(*stack_));
  has_run_on_values_ = true;
  return true;
}

void OperatorCall::run_meta_kernel() {
  if (fills_by_mask_) {
    torch::jit::drop(*stack_, argument_count_ - 1); // the first argument is the result
    return;
  }
  if (needs_values(op_, arguments())) {
    if (known_.has_value() && run_on_values()) {
      return;
    }
    if (mask_counts_.has_value()) {
      answer_with_counts(op_, *mask_counts_, stack_);
      return;
    }
    require_assumed_values(plan_.name, why_unknown_);
    TORCH_CHECK_NOT_IMPLEMENTED(
        answer_with_ones(op_, stack_), plan_.name,
        " depends on values, and virtual GPUs cannot assume any for it");
    return;
  }
  if (plan_.has_missing_meta) {
    const auto& like = plan_.record->missing_meta->like;
    at::Tensor result;
    if (like.has_value()) {
      const auto& argument_like = argument(*like).toTensor();
      result = at::empty(argument_like.sizes(), argument_like.options());
    }
    torch::jit::drop(*stack_, argument_count_);
    if (result.defined()) {
      stack_->emplace_back(std::move(result));
    }
    return;
  }
  const bool is_foreign = plan_.name.rfind("aten::", 0) != 0 && !plan_.host_kernel.has_value();
  if (is_foreign && !infers_sizes(op_)) {
    raise_sizes_unknown(plan_.name);
  }
  auto repeated = is_foreign ? std::nullopt : RepeatedCall::make(plan_, arguments());
  if (repeated.has_value() && repeated->answer(*stack_)) {
    return;
  }
  try {
    run_kernel_of(c10::DispatchKey::Meta);
    if (repeated.has_value()) {
      repeated->keep(*stack_);
    }
  } catch (const std::exception& error) {
    if (is_foreign && says_sizes_are_unknown(error)) {
      raise_sizes_unknown(plan_.name);
    }
    raise_if_assertion(error);
    throw;
  }
}

} // namespace anyrig::virtual_gpu
