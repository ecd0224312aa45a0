// The operands of a call: their twins before the kernel runs, and their owners after it.
#include "dispatch/operator_call.h"

#include "dispatch/container.h"
#include "dispatch/twin.h"
#include "memory/lazy_clones.h"

#include <algorithm>
#include <utility>

namespace anyrig::virtual_gpu {

bool OperatorCall::mixes_devices() {
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
  const auto any_differs = [&differs](const c10::IValue& value) {
    return value.isTensor() && differs(value.toTensor());
  };
  for (const int i : plan_.operand_places) {
    const c10::IValue& value = argument(i);
    if (any_differs(value)) {
      return true;
    }
    if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto list = value.toListRef();
      if (std::any_of(list.begin(), list.end(), any_differs)) {
        return true;
      }
    }
  }
  return false;
}

void OperatorCall::replace_by_twins(size_t i) {
  c10::IValue& value = argument(i);
  if (value.isTensor()) {
    first_operand_[i] = static_cast<int>(operands_.size());
    value = twin(std::move(value).toTensor(), i);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> twins;
    const auto tensors = value.toListRef();
    twins.reserve(tensors.size());
    operands_.reserve(operands_.size() + tensors.size());
    for (const c10::IValue& tensor : tensors) {
      twins.push_back(twin(tensor.toTensor(), i));
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

at::Tensor OperatorCall::twin(at::Tensor tensor, size_t i) {
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
    operands_.push_back({std::move(tensor), twin, storage_impl_of(twin), plan_.arguments[i]});
    return twin;
  }
  sees_meta_ |= tensor.is_meta();
  if (tensor.is_cpu() && tensor.has_storage()) {
    host_storages_.push_back(storage_impl_of(tensor));
    return twin_of(tensor);
  }
  return tensor;
}

at::Tensor OperatorCall::container_twin(const at::Tensor& container, size_t i) {
  std::vector<at::Tensor> twins;
  for (const at::Tensor& part : parts_of(container)) {
    if (plan_.arguments[i].is_written) {
      give_own_memory(part);
    }
    twins.push_back(twin_of(part));
    parts_.push_back({part, twins.back(), storage_impl_of(twins.back()), plan_.arguments[i]});
  }
  at::Tensor twin = contain(container, twins);
  operands_.push_back({container, twin, nullptr, plan_.arguments[i]});
  return twin;
}

void OperatorCall::replace_device(c10::IValue& value) {
  const c10::Device device = value.toDevice();
  if (device.type() != kDeviceType) {
    returns_to_host_ = true;
    return;
  }
  device_ = resolve_device(device);
  value = kernel_device();
}

void OperatorCall::update_owners() {
  if (!plan_.writes) {
    return;
  }
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

void OperatorCall::keep_twins() {
  for (auto& operand : operands_) {
    if (operand.shadow != nullptr) {
      keep_twin(operand.owner, std::move(operand.twin));
    }
  }
}

} // namespace anyrig::virtual_gpu
