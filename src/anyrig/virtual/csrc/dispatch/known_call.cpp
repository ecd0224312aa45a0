#include "dispatch/known_call.h"

#include "dispatch/each_tensor.h"
#include "dispatch/no_warnings.h"
#include "dispatch/twin.h"
#include "dispatch/widening.h"
#include "memory/known_values.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// What a call may read and write in total, so that a kernel takes a millisecond or two: products
// need more time for each byte.
constexpr size_t kMaxBytesOfCall = 4 * kMaxKnownBytes;
constexpr size_t kMaxBytesOfProduct = size_t{64} << 10;

bool begins_with(const std::string& text, const char* beginning) {
  return text.rfind(beginning, 0) == 0;
}

bool makes_views(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool draws_numbers(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
      std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
           return argument.name() == "generator" || argument.name() == "seed";
         });
}

// Returns whether the operator leaves elements of its results uninitialized.
bool leaves_elements(const std::string& name) {
  return begins_with(name, "aten::empty") || begins_with(name, "aten::_empty") ||
      begins_with(name, "aten::new_empty");
}

// Returns whether a scatter writes to every position of its first argument, as when it inverts a
// permutation.
bool scatters_everywhere(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& overload = op.schema().overload_name();
  if (op.schema().name() != "aten::scatter_" || (overload != "src" && overload != "value")) {
    return false;
  }
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& index = arguments[2].toTensor();
  if (self.dim() != 1 || index.dim() != 1 || index.scalar_type() != at::kLong ||
      index.nbytes() > kMaxKnownBytes || index.numel() < self.numel()) {
    return false;
  }
  const at::Tensor places = index.is_cpu() ? index : known_values(index);
  if (!places.defined()) {
    return false;
  }
  std::vector<bool> is_written(self.numel());
  const auto* first = places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < places.numel(); ++i) {
    const int64_t place = first[i * places.stride(0)];
    if (place >= 0 && place < self.numel()) {
      is_written[place] = true;
    }
  }
  return std::all_of(is_written.begin(), is_written.end(), [](bool written) { return written; });
}

bool is_only_written(const ArgumentPlan& argument) {
  return argument.is_written && !argument.is_read;
}

// Returns CPU memory for the values of a tensor of the GPU.
at::Tensor allocate_values(const at::Tensor& owner) {
  return at::empty_strided(
      owner.sizes(), owner.strides(), at::TensorOptions().dtype(owner.dtype()));
}

} // namespace

ValueRule value_rule_of(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  if (!begins_with(name, "aten::")) {
    return ValueRule::Forget; // it is unknown whether the operator is deterministic
  }
  if (op.hasTag(at::Tag::inplace_view) || name == "aten::_resize_output_") {
    return ValueRule::Keep;
  }
  if (draws_numbers(op)) {
    return ValueRule::Draw;
  }
  if (makes_views(op.schema()) || leaves_elements(name)) {
    return ValueRule::Forget;
  }
  return ValueRule::Compute;
}

std::optional<KnownCall> KnownCall::make(
    const c10::OperatorHandle& op,
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> arguments) {
  if (plan.value_rule != ValueRule::Compute || !plan.computes_known_values) {
    return std::nullopt;
  }
  const bool overwrites = scatters_everywhere(op, arguments);
  // Most calls have an unknown tensor. Find it before anything is allocated.
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_only_written(plan.arguments[i]) || (i == 0 && overwrites)) {
      continue;
    }
    bool is_known = true;
    for_each_tensor(arguments[i], [&is_known](const at::Tensor& tensor) {
      is_known = is_known && (!tensor.defined() || tensor.is_cpu() || may_be_known(tensor));
    });
    if (!is_known) {
      return std::nullopt;
    }
  }
  KnownCall call(plan);
  call.arguments_.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    ArgumentPlan argument = plan.arguments[i];
    argument.is_read = argument.is_read && !(i == 0 && overwrites);
    if (!call.add(arguments[i], argument)) {
      return std::nullopt;
    }
  }
  return call.writes_to_shared_memory() ? std::nullopt : std::optional(std::move(call));
}

// Returns whether the call writes to a tensor that shares memory with another one. Copies would not
// change together.
bool KnownCall::writes_to_shared_memory() {
  if (written_.empty()) {
    return false;
  }
  std::sort(storages_.begin(), storages_.end());
  return std::any_of(written_.begin(), written_.end(), [this](const Written& written) {
    const auto* storage = written.owner.storage().unsafeGetStorageImpl();
    const auto [first, last] = std::equal_range(storages_.begin(), storages_.end(), storage);
    return last - first > 1;
  });
}

WhyUnknown why_not_known(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  if (plan.value_rule != ValueRule::Compute || !plan.computes_known_values) {
    return plan.value_rule == ValueRule::Draw ? WhyUnknown::DrawnNumbers : WhyUnknown::NotComputed;
  }
  std::optional<WhyUnknown> why;
  for (size_t i = 0; i < arguments.size() && !why.has_value(); ++i) {
    if (is_only_written(plan.arguments[i])) {
      continue;
    }
    for_each_tensor(arguments[i], [&why](const at::Tensor& tensor) {
      if (!why.has_value() && is_virtual(tensor) && !known_values(tensor).defined()) {
        why = why_unknown(tensor);
      }
    });
  }
  return why.value_or(WhyUnknown::TooMany);
}

// Adds an argument with its tensors replaced by their known values. Returns false if any value is
// unknown.
bool KnownCall::add(const c10::IValue& value, const ArgumentPlan& argument) {
  const auto first_written = written_.size();
  if (value.isTensor()) {
    auto values = values_for(value.toTensor(), argument);
    if (!values.has_value()) {
      return false;
    }
    arguments_.emplace_back(std::move(*values));
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      auto values = values_for(tensor, argument);
      if (!values.has_value()) {
        return false;
      }
      list.push_back(std::move(*values));
    }
    arguments_.emplace_back(std::move(list));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      auto values = tensor.has_value() ? values_for(*tensor, argument) : at::Tensor();
      if (!values.has_value()) {
        return false;
      }
      list.push_back(tensor.has_value() ? values : std::nullopt);
    }
    arguments_.emplace_back(std::move(list));
  } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
    arguments_.emplace_back(c10::Device(at::kCPU));
  } else {
    arguments_.push_back(value);
  }
  for (size_t i = first_written; i < written_.size(); ++i) {
    const bool is_alone = value.isTensor();
    places_.emplace_back(
        arguments_.size() - 1, is_alone ? -1 : static_cast<int64_t>(i - first_written));
  }
  return true;
}

// Returns a CPU tensor of the values of `tensor`; none if they are unknown.
std::optional<at::Tensor> KnownCall::values_for(
    const at::Tensor& tensor,
    const ArgumentPlan& argument) {
  if (!tensor.defined()) {
    return tensor; // an index that selects everything, or an optional argument
  }
  if (tensor.layout() != at::kStrided || (argument.is_written && !is_virtual(tensor))) {
    return std::nullopt;
  }
  if (is_virtual(tensor) && tensor.has_storage()) {
    storages_.push_back(tensor.storage().unsafeGetStorageImpl());
  }
  if (is_only_written(argument)) {
    written_.push_back({tensor, {}});
    return at::Tensor();
  }
  bytes_ += tensor.nbytes();
  if (bytes_ > kMaxBytesOfCall || !(tensor.is_cpu() || is_virtual(tensor))) {
    return std::nullopt;
  }
  at::Tensor values = is_virtual(tensor) ? known_values(tensor) : tensor;
  if (!values.defined()) {
    return std::nullopt;
  }
  if (argument.is_written) {
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      return std::nullopt; // an expanded tensor, which most kernels refuse to write to
    }
    values = allocate_values(tensor).copy_(values);
    written_.push_back({tensor, values});
  }
  return values;
}

// Returns whether the call is small enough to compute.
bool KnownCall::has_room(c10::ArrayRef<c10::IValue> results) const {
  size_t bytes = bytes_;
  for (const auto& written : written_) {
    bytes += written.owner.nbytes();
  }
  for (const auto& result : results) {
    for_each_tensor(result, [&bytes](const at::Tensor& tensor) {
      bytes += tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
    });
  }
  return bytes <= (plan_->work.multiplies ? kMaxBytesOfProduct : kMaxBytesOfCall);
}

// Gives the kernel memory for the tensors that it only writes to, in their present sizes.
void KnownCall::put_written() {
  for (size_t i = 0; i < written_.size(); ++i) {
    auto& [owner, values] = written_[i];
    if (values.defined()) {
      continue;
    }
    values = allocate_values(owner);
    const auto [argument, position] = places_[i];
    if (position < 0) {
      arguments_[argument] = values;
    } else {
      auto list = arguments_[argument].toTensorVector();
      list[position] = values;
      arguments_[argument] = std::move(list);
    }
  }
}

std::optional<torch::jit::Stack> KnownCall::run(const c10::OperatorHandle& op) {
  try {
    put_written();
    const WithoutWarnings without_warnings; // the Meta kernel warns
    // The operators that the kernel calls do not exist on a GPU.
    const at::DisableRecordFunctionGuard unrecorded;
    const auto kernel = [&] {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments_);
    };
    if (!plan_->widened.empty() && needs_widening(plan_->widened, op.schema(), arguments_)) {
      run_widened(plan_->widened, op.schema(), arguments_, kernel);
    } else {
      kernel();
    }
  } catch (const std::exception&) {
    return std::nullopt; // the CPU has no such kernel, or the call is invalid
  }
  for (c10::IValue& result : arguments_) {
    if (result.isTensor() && result.toTensor().defined() && result.toTensor().has_storage() &&
        result.toTensor().storage().use_count() > 1) {
      result = result.toTensor().clone();
    }
  }
  return std::move(arguments_);
}

std::optional<WhyUnknown> KnownCall::compute(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> results) {
  if (!has_room(results)) {
    return WhyUnknown::TooMany;
  }
  auto values = run(op);
  if (!values.has_value()) {
    return WhyUnknown::NotComputed;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (plan_->returned_argument[i] >= 0) {
      continue; // is among those written
    }
    std::vector<at::Tensor> computed;
    for_each_tensor((*values)[i], [&](const at::Tensor& tensor) { computed.push_back(tensor); });
    (*values)[i] = c10::IValue();
    size_t next = 0;
    for_each_tensor(results[i], [&](const at::Tensor& result) {
      if (next < computed.size() && computed[next].defined() && result.defined()) {
        store_values(result, std::move(computed[next]));
      }
      ++next;
    });
  }
  values.reset();
  store_written();
  return std::nullopt;
}

std::optional<at::IntArrayRef> KnownCall::sizes_of_written(const at::Tensor& owner) const {
  for (const auto& written : written_) {
    if (written.owner.is_same(owner)) {
      return written.values.sizes();
    }
  }
  return std::nullopt;
}

void KnownCall::store_written() {
  for (auto& [owner, values] : written_) {
    store_values(owner, std::move(values));
  }
}

} // namespace anyrig::virtual_gpu
