// The one kernel behind every operator of a virtual device.
#include "dispatch/call.h"

#include "device/host_waits.h"
#include "dispatch/container.h"
#include "dispatch/device_check.h"
#include "dispatch/operand_checks.h"
#include "dispatch/operator_call.h"
#include "dispatch/twin.h"
#include "hazards/write_watch.h"
#include "random/generator.h"
#include "random/random_source.h"
#include "temporaries/cublas_workspace.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <utility>

namespace anyrig::virtual_gpu {

void OperatorCall::run() {
  check_not_forked();
  const RunningOperator running(plan_.name);
  if (plan_.takes_optional_lists) {
    for (const int i : plan_.optional_lists) {
      retype(argument(i));
    }
  }
  if (plan_.check == DeviceCheck::Convolution) {
    check_types(arguments());
  }
  if (mixes_devices()) {
    bool has_moved = move_value();
    check_devices(plan_, op_.schema(), arguments());
    has_moved = move_indices() || has_moved;
    if (has_moved && argument(0).toTensor().is_cpu() && !mixes_devices()) {
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
  for (const int i : plan_.operand_places) {
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
  if (!operands_.empty() && plan_.refused.contains(operands_[0].owner.scalar_type()) &&
      operands_[0].owner.numel() > 0) {
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
  if (!plan_.generators.empty()) {
    provide_generators();
  }
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
    const bool has_bias =
        plan_.record->adds_bias && !operands_.empty() && operands_[0].owner.dim() == 1;
    provide_cublas_workspace(device_.index(), /*is_light=*/has_bias);
  }
  if (temporaries_.has_value()) {
    temporaries_->end();
  }
  if (charges) {
    charge();
  }
  keep_twins();
  if (C10_UNLIKELY(watches_writes())) {
    note_writes();
  }
}

bool OperatorCall::begins_with_dense_tensor() {
  const c10::IValue& first = argument(0);
  if (first.isTensor()) {
    return takes_device_of(first.toTensor());
  }
  return first.isTensorList() && !first.toTensorList().empty() &&
      takes_device_of(first.toTensorList().get(0));
}

bool OperatorCall::takes_device_of(const at::Tensor& tensor) {
  if (!is_virtual(tensor) || is_container(tensor)) {
    return false;
  }
  device_ = tensor.device();
  return true;
}

bool OperatorCall::move_value() {
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
  return true;
}

// Indices on the CPU stay there, and the kernel reads them as it does on one device.
bool OperatorCall::move_indices() {
  if (plan_.check != DeviceCheck::WrittenIndices) {
    return false;
  }
  const c10::Device target = argument(0).toTensor().device();
  c10::List<std::optional<at::Tensor>> indices;
  bool has_moved = false;
  for (const auto& index : argument(1).toOptionalTensorVector()) {
    const bool moves =
        index.has_value() && index->defined() && !index->is_cpu() && index->device() != target;
    indices.push_back(moves ? std::optional(index->to(target)) : index);
    has_moved |= moves;
  }
  argument(1) = std::move(indices);
  return has_moved;
}

void OperatorCall::retype(c10::IValue& value) {
  if (value.isOptionalTensorList() || value.isTensorList() || !value.isList()) {
    return;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  for (const c10::IValue& tensor : value.toListRef()) {
    tensors.push_back(tensor.toOptional<at::Tensor>());
  }
  value = std::move(tensors);
}

void OperatorCall::note_writes() {
  for (const auto* operands : {&operands_, &parts_}) {
    for (const auto& operand : *operands) {
      const bool is_statistic = operand.plan.is_undeclared;
      if (operand.plan.is_written && !is_statistic && !is_container(operand.owner)) {
        note_write(operand.owner);
      }
    }
  }
}

void OperatorCall::provide_generators() {
  for (const int i : plan_.generators) {
    c10::IValue& value = argument(i);
    std::optional<at::Generator> given;
    if (!value.isNone()) {
      given = value.toGenerator();
    }
    if (operands_.empty() && !host_storages_.empty()) {
      TORCH_CHECK(
          !plan_.record->draws_by_apply2,
          "CUDA_tensor_apply2: Expected tensors to have CUDA DeviceType, but got tensors with type "
          "cpu and cpu");
      check_drawn_on_gpu(at::kCPU);
    }
    value =
        generator_of(given, device_.index()).take_host_generator(plan_.record->reserved_numbers);
  }
}

void OperatorCall::charge() {
  const Moved moved = moved_by(
      plan_.work.traffic, operands_, parts_, result_bytes_, order_counts(plan_.work, description_));
  if (moved.footprint == 0) {
    return; // CUDA launches no kernel for zero elements
  }
  complete(plan_.work, moved, description_);
  Clock::get().run(current_stream(device_.index()), description_.works);
}

void run_on_twins(
    const OperatorPlan& plan,
    const c10::OperatorHandle& op,
    c10::DispatchKey host_key,
    torch::jit::Stack* stack) {
  OperatorCall(plan, op, host_key, stack).run();
}

} // namespace anyrig::virtual_gpu
