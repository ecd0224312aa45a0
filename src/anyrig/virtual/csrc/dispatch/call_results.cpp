// The results of a call: new tensors of the device, views of operands, or operands themselves.
#include "dispatch/operator_call.h"

#include "device/device.h"
#include "dispatch/container.h"
#include "dispatch/each_tensor.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"

#include <utility>

namespace anyrig::virtual_gpu {
namespace {

// If values are assumed, no generated text has ended yet, so that generation takes its full length:
// `torch.isin` of the newest token of each text is false. Returns whether `result` is such a test.
bool assume_no_end(const OperatorPlan& plan, const at::Tensor& result) {
  if (plan.name != "aten::isin" || !settings().assume_values || result.dim() == 0 ||
      result.numel() != result.size(0)) {
    return false;
  }
  at::Tensor values = values_to_write(result);
  if (values.defined()) {
    values.zero_();
  }
  return values.defined();
}

} // namespace

void OperatorCall::wrap_results() {
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

std::vector<at::Tensor> OperatorCall::results(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    results.push_back(result(tensor));
  }
  return results;
}

at::Tensor OperatorCall::result(at::Tensor tensor) {
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

void OperatorCall::update_known_values() {
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
      plan_.name == "aten::_amp_foreach_non_finite_check_and_unscale_";
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
        if (!assume_no_end(plan_, result)) {
          forget_values(result, why_unknown_);
        }
      });
    }
  }
}

} // namespace anyrig::virtual_gpu
