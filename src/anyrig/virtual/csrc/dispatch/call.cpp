// The one kernel behind every operator of a virtual device.
//
// More than 400 lines: the steps of one call share their findings about its arguments.
#include "dispatch/call.h"

#include "device/host_waits.h"
#include "dispatch/container.h"
#include "dispatch/device_assert.h"
#include "dispatch/device_check.h"
#include "dispatch/each_tensor.h"
#include "dispatch/integer_division.h"
#include "dispatch/kernel_names.h"
#include "dispatch/known_call.h"
#include "dispatch/meta_errors.h"
#include "dispatch/operand.h"
#include "dispatch/operand_checks.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "dispatch/unknown_sizes.h"
#include "dispatch/widening.h"
#include "memory/host_memory.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "operators/cublas.h"
#include "random/generator.h"
#include "random/random_source.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace anyrig::virtual_gpu {
namespace {

c10::StorageImpl* storage_impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// One call of an operator: replaces its arguments by twins, runs the CPU or Meta kernel, and turns
// its results into virtual tensors.
class OperatorCall {
 public:
  OperatorCall(
      const OperatorPlan& plan,
      const c10::OperatorHandle& op,
      c10::DispatchKey host_key,
      torch::jit::Stack* stack)
      : plan_(plan),
        host_key_(host_key),
        op_(op),
        stack_(stack),
        argument_count_(plan.arguments.size()),
        first_argument_(stack->size() - argument_count_),
        device_(kDeviceType, static_cast<c10::DeviceIndex>(current_device())),
        first_operand_(argument_count_, -1) {}

  void run() {
    check_not_forked();
    const RunningOperator running(op_.schema().name());
    if (plan_.takes_optional_lists) {
      for (const int i : plan_.optional_lists) {
        retype(argument(i));
      }
    }
    if (plan_.check == DeviceCheck::Convolution) {
      check_types(arguments());
    }
    if (mixes_devices()) {
      const bool on_host = move_value();
      check_devices(plan_, op_.schema(), arguments());
      if (on_host) {
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
        return;
      }
      if (plan_.check == DeviceCheck::Foreach) {
        // The CPU kernel calls operators on one tensor at a time, and each call comes back here.
        op_.redispatchBoxed(c10::DispatchKeySet(host_key_), stack_);
        return;
      }
    }
    if (C10_UNLIKELY(watches_waits()) && waits_for_values(op_, arguments())) {
      note_host_wait(current_stream(device_.index()));
    }
    const bool charges = plan_.work.traffic != Traffic::Free && Clock::get().charges();
    if (shape_only()) {
      known_ = KnownCall::make(op_, plan_, arguments());
      if (!known_.has_value()) {
        mask_counts_ = count_by_masks(op_, arguments());
        why_unknown_ = why_not_known(plan_, arguments());
      }
      fills_by_mask_ = fills_by_mask(op_, arguments());
    }
    if (plan_.temporaries != nullptr && begins_with_dense_tensor()) {
      if (auto needed = plan_.temporaries(op_.schema(), arguments()); !needed.empty()) {
        temporaries_.emplace(std::move(needed), device_.index());
      }
    }
    for (size_t i = 0; i < argument_count_; ++i) {
      replace_by_twins(i);
    }
    // Sparse and nested operands need fewer operations than their sizes suggest.
    if (charges && plan_.work.describe != nullptr && parts_.empty()) {
      plan_.work.describe(plan_.work, arguments(), description_);
    }
    if (operands_.empty() && sees_meta_) {
      // The only operands are fake tensors, which report a virtual device but hold a Meta tensor.
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack_);
      return;
    }
    if (plan_.refuses_dtypes && !operands_.empty() && operands_[0].owner.numel() > 0) {
      check_not_refused(*plan_.record, operands_[0].owner.scalar_type(), arguments());
    }
    if (plan_.checks_operands && !operands_.empty()) {
      check_operands(*plan_.record, arguments());
    }
    if (plan_.check_limits != nullptr && !operands_.empty()) {
      plan_.check_limits(arguments(), device_);
    }
    if (plan_.checks_determinism) {
      check_deterministic(*plan_.record, arguments());
    }
    provide_generators();
    CurrentDevice guard(device_.index());
    run_kernel();
    update_owners();
    wrap_results();
    if (temporaries_.has_value()) {
      temporaries_->proceed();
    }
    if (shape_only()) {
      update_known_values();
    }
    if (plan_.uses_cublas) {
      provide_cublas_workspace(device_.index());
    }
    if (temporaries_.has_value()) {
      temporaries_->end();
    }
    if (charges) {
      charge();
    }
    keep_twins();
  }

 private:
  // Whether the first argument is a dense virtual tensor, or a list that begins with one. Makes its
  // device the device of the call.
  bool begins_with_dense_tensor() {
    const c10::IValue& first = argument(0);
    if (first.isTensor()) {
      return takes_device_of(first.toTensor());
    }
    return first.isTensorList() && !first.toTensorList().empty() &&
        takes_device_of(first.toTensorList().get(0));
  }

  bool takes_device_of(const at::Tensor& tensor) {
    if (!is_virtual(tensor) || is_container(tensor)) {
      return false;
    }
    device_ = tensor.device();
    return true;
  }

  // Moves a zero-dimensional value to the device of the tensor that it is written to, as PyTorch's
  // `fill_` and `_index_put_impl_` do. Returns whether that device is the CPU, whose kernel must
  // then run.
  bool move_value() {
    const size_t place = plan_.record->moved_value;
    if (place == 0 || !argument(place).isTensor()) {
      return false;
    }
    const at::Tensor value = argument(place).toTensor();
    const c10::Device target = argument(0).toTensor().device();
    if (value.is_cpu() || value.dim() != 0 || value.device() == target) {
      return false;
    }
    argument(place) = value.to(target);
    return target.is_cpu();
  }

  c10::IValue& argument(size_t i) {
    return (*stack_)[first_argument_ + i];
  }

  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack_->data() + first_argument_, argument_count_);
  }

  // Gives a TorchScript list of optional tensors the list type that IValue::isOptionalTensorList
  // recognises.
  static void retype(c10::IValue& value) {
    if (value.isOptionalTensorList() || value.isTensorList() || !value.isList()) {
      return;
    }
    c10::List<std::optional<at::Tensor>> tensors;
    for (const c10::IValue& tensor : value.toListRef()) {
      tensors.push_back(tensor.toOptional<at::Tensor>());
    }
    value = std::move(tensors);
  }

  // Returns whether any two tensors among the arguments are on different devices.
  bool mixes_devices() {
    std::optional<c10::Device> common;
    const auto differs = [&common](const at::Tensor& tensor) {
      if (!tensor.defined()) {
        return false;
      }
      if (!common.has_value()) {
        common = tensor.device();
      }
      return *common != tensor.device();
    };
    for (size_t i = 0; i < argument_count_; ++i) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) {
        if (differs(value.toTensor())) {
          return true;
        }
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          if (differs(tensor)) {
            return true;
          }
        }
      } else if (value.isOptionalTensorList()) {
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
          if (tensor.has_value() && differs(*tensor)) {
            return true;
          }
        }
      }
    }
    return false;
  }

  // Replaces the tensors in one argument by their twins.
  void replace_by_twins(size_t i) {
    c10::IValue& value = argument(i);
    if (value.isTensor()) {
      first_operand_[i] = static_cast<int>(operands_.size());
      value = twin(std::move(value).toTensor(), i);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> twins;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        twins.push_back(twin(tensor, i));
      }
      value = std::move(twins);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> twins;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        twins.push_back(
            tensor.has_value() ? std::optional<at::Tensor>(twin(*tensor, i)) : std::nullopt);
      }
      value = std::move(twins);
    } else if (value.isDevice()) {
      replace_device(value);
    }
  }

  at::Tensor twin(at::Tensor tensor, size_t i) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (is_virtual(tensor)) {
      if (operands_.empty()) {
        device_ = tensor.device();
      }
      if (is_container(tensor)) {
        return container_twin(tensor, i);
      }
      if (plan_.arguments[i].is_written) {
        give_own_memory(tensor);
      }
      at::Tensor twin = twin_of(tensor);
      operands_.push_back(
          {std::move(tensor), twin, storage_impl_of(twin), plan_.arguments[i]});
      return twin;
    }
    sees_meta_ |= tensor.is_meta();
    if (tensor.is_cpu() && tensor.has_storage()) {
      host_storages_.push_back(storage_impl_of(tensor));
      return twin_of(tensor);
    }
    return tensor;
  }

  at::Tensor container_twin(const at::Tensor& container, size_t i) {
    std::vector<at::Tensor> twins;
    for (const at::Tensor& part : parts_of(container)) {
      if (plan_.arguments[i].is_written) {
        give_own_memory(part);
      }
      twins.push_back(twin_of(part));
      parts_.push_back(
          {part, twins.back(), storage_impl_of(twins.back()), plan_.arguments[i]});
    }
    at::Tensor twin = contain(container, twins);
    operands_.push_back({container, twin, nullptr, plan_.arguments[i]});
    return twin;
  }

  void update_owners() {
    for (const auto& part : parts_) {
      if (part.plan.is_written) {
        update_owner(part.owner, part.twin);
      }
    }
    for (const auto& operand : operands_) {
      if (!operand.plan.is_written) {
        continue;
      }
      if (plan_.raises_versions && !operand.owner.is_inference()) {
        operand.owner.unsafeGetTensorImpl()->bump_version();
      }
      if (operand.shadow != nullptr) {
        update_owner(operand.owner, operand.twin);
      } else {
        update_container(operand.owner, operand.twin, results(parts_of(operand.twin)));
      }
    }
  }

  void keep_twins() {
    for (auto& operand : operands_) {
      if (operand.shadow != nullptr) {
        keep_twin(operand.owner, std::move(operand.twin));
      }
    }
  }

  void replace_device(c10::IValue& value) {
    const c10::Device device = value.toDevice();
    if (device.type() != kDeviceType) {
      returns_to_host_ = true;
      return;
    }
    device_ = resolve_device(device);
    value = kernel_device();
  }

  void provide_generators() {
    for (const int i : plan_.generators) {
      c10::IValue& value = argument(i);
      std::optional<at::Generator> given;
      if (!value.isNone()) {
        given = value.toGenerator();
      }
      if (operands_.empty() && !host_storages_.empty()) {
        check_drawn_on_card(at::kCPU);
      }
      value = generator_of(given, device_.index()).take_host_generator();
    }
  }

  void run_kernel() {
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

  void run_kernel_of(c10::DispatchKey key) {
    if (key == host_key_ && !plan_.widened.empty() &&
        needs_widening(plan_.widened, op_.schema(), *stack_)) {
      run_widened(plan_.widened, op_.schema(), *stack_, [&] { call_kernel_of(key); });
    } else {
      call_kernel_of(key);
    }
  }

  void call_kernel_of(c10::DispatchKey key) {
    if (C10_LIKELY(plan_.choose_layout == nullptr && !(shape_only() && plan_.is_pointwise))) {
      call_kernel(c10::DispatchKeySet(key));
      return;
    }
    const ResultLayout layout = result_layout();
    call_kernel(c10::DispatchKeySet(key));
    const size_t count = plan_.returned_argument.size();
    layout.apply(stack_->data() + stack_->size() - count, count);
  }

  void call_kernel(c10::DispatchKeySet keys) {
    if (plan_.divides_integers != nullptr && keys.has(c10::DispatchKey::CPU) &&
        plan_.divides_integers(arguments())) {
      replace_zero_divisors(argument(0), argument(1));
    }
    try {
      if (plan_.host_kernel.has_value()) {
        plan_.host_kernel->callBoxed(op_, keys, stack_);
      } else {
        op_.redispatchBoxed(keys, stack_);
      }
    } catch (const c10::Error& error) {
      raise_if_device_assert(error, op_.schema().name(), device_);
      raise_with_cuda_name(error);
      throw;
    }
  }

  ResultLayout result_layout() {
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

  // Runs the CPU kernel on known values, which determine the sizes of the results. Returns false if
  // it fails.
  bool run_on_values() {
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

  void run_meta_kernel() {
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
      const auto& name = op_.schema().name();
      require_assumed_values(name, why_unknown_);
      TORCH_CHECK_NOT_IMPLEMENTED(
          answer_with_ones(op_, stack_),
          name, " depends on values, and virtual GPUs cannot assume any for it");
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
    const bool is_foreign =
        op_.schema().name().rfind("aten::", 0) != 0 && !plan_.host_kernel.has_value();
    if (is_foreign && !infers_sizes(op_)) {
      raise_sizes_unknown(op_.schema().name());
    }
    try {
      run_kernel_of(c10::DispatchKey::Meta);
    } catch (const pybind11::error_already_set& error) {
      if (is_foreign && says_sizes_are_unknown(error)) {
        raise_sizes_unknown(op_.schema().name());
      }
      raise_if_assertion(error);
      throw;
    }
  }

  void wrap_results() {
    const size_t count = plan_.returned_argument.size();
    const size_t first_result = stack_->size() - count;
    if (count == 0 && temporaries_.has_value()) {
      temporaries_->begin_result(0);
    }
    for (size_t i = 0; i < count; ++i) {
      if (temporaries_.has_value()) {
        temporaries_->begin_result(i);
      }
      c10::IValue& value = (*stack_)[first_result + i];
      if (value.isTensor()) {
        const int argument = plan_.returned_argument[i];
        const int operand = argument < 0 ? -1 : first_operand_[argument];
        if (operand >= 0 && operand < static_cast<int>(operands_.size())) {
          value = operands_[operand].owner;
        } else {
          value = result(std::move(value).toTensor());
        }
      } else if (value.isTensorList()) {
        value = results(value.toTensorVector());
      }
    }
  }

  // ShapeOnly: computes known results and forgets the values of all other tensors written to.
  void update_known_values() {
    if (has_run_on_values_) {
      known_->store_written();
      return;
    }
    const size_t count = plan_.returned_argument.size();
    const c10::ArrayRef<c10::IValue> results(stack_->data() + stack_->size() - count, count);
    if (plan_.value_rule == ValueRule::Keep) {
      return;
    }
    if (known_.has_value()) {
      const auto why_not = known_->compute(op_, results);
      if (!why_not.has_value()) {
        return;
      }
      why_unknown_ = *why_not;
    }
    // A gradient scaler checks for infinite gradients. Leave its flag unset, so that a step without
    // data counts as one with finite gradients.
    const bool checks_for_infinities =
        op_.schema().name() == "aten::_amp_foreach_non_finite_check_and_unscale_";
    const auto* kept = checks_for_infinities ? &operands_[first_operand_[1]] : nullptr;
    for (const auto* operands : {&operands_, &parts_}) {
      for (const auto& operand : *operands) {
        if (operand.plan.is_written && &operand != kept) {
          forget_values(operand.owner, why_unknown_);
        }
      }
    }
    if (plan_.value_rule == ValueRule::Forget) {
      return; // the results may be views, whose memory keeps its values
    }
    for (size_t i = 0; i < count; ++i) {
      if (plan_.returned_argument[i] < 0) {
        for_each_tensor(results[i], [this](const at::Tensor& result) {
          forget_values(result, why_unknown_);
        });
      }
    }
  }

  std::vector<at::Tensor> results(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> results;
    for (const at::Tensor& tensor : tensors) {
      results.push_back(result(tensor));
    }
    return results;
  }

  // Returns the tensor that the caller gets for a tensor returned by the kernel.
  at::Tensor result(at::Tensor tensor) {
    if (!tensor.defined() || returns_to_host_ || !(tensor.is_cpu() || tensor.is_meta())) {
      return tensor;
    }
    for (const auto* operands : {&operands_, &parts_}) {
      for (const auto& operand : *operands) {
        if (operand.twin.is_same(tensor)) {
          return operand.owner;
        }
      }
    }
    if (is_container(tensor)) {
      return contain(tensor, results(parts_of(tensor)));
    }
    if (tensor.layout() == at::kStrided && tensor.has_storage()) {
      const auto* storage = storage_impl_of(tensor);
      for (const auto* operands : {&operands_, &parts_}) {
        for (const auto& operand : *operands) {
          if (operand.shadow == storage) {
            make_virtual_view(tensor, operand.owner);
            return tensor;
          }
        }
      }
      for (const auto* host : host_storages_) {
        if (host == storage) {
          tensor = tensor.clone();
          break;
        }
      }
    }
    make_virtual(tensor, device_.index());
    result_bytes_ += touched_bytes(tensor);
    return tensor;
  }

  void charge() {
    const Moved moved = moved_by(plan_.work.traffic, operands_, parts_, result_bytes_);
    if (moved.footprint == 0) {
      return; // CUDA launches no kernel for zero elements
    }
    complete(plan_.work, moved, description_);
    Clock::get().run(current_stream(device_.index()), description_.works);
  }

  const OperatorPlan& plan_;
  const c10::DispatchKey host_key_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const size_t argument_count_;
  const size_t first_argument_;
  c10::Device device_;
  c10::SmallVector<Operand, 6> operands_;
  // The parts of the containers among `operands_`.
  c10::SmallVector<Operand, 6> parts_;
  c10::SmallVector<int, 16> first_operand_;
  // The storages of the CPU tensors among the arguments. A result with such a storage is a view of
  // an argument.
  c10::SmallVector<c10::StorageImpl*, 4> host_storages_;
  // ShapeOnly: the call on known values, if all are known.
  std::optional<KnownCall> known_;
  std::optional<MaskCounts> mask_counts_;
  std::optional<TemporaryMemory> temporaries_;
  WhyUnknown why_unknown_ = WhyUnknown::NotComputed;
  bool has_run_on_values_ = false;
  bool fills_by_mask_ = false;
  bool sees_meta_ = false;
  bool returns_to_host_ = false;
  Description description_;
  double result_bytes_ = 0;
};

} // namespace

void run_on_twins(
    const OperatorPlan& plan,
    const c10::OperatorHandle& op,
    c10::DispatchKey host_key,
    torch::jit::Stack* stack) {
  OperatorCall(plan, op, host_key, stack).run();
}

} // namespace anyrig::virtual_gpu
