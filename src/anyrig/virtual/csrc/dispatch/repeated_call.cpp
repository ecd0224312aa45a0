#include "dispatch/repeated_call.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// How many numbers the descriptions of all kept calls may have: 64 MiB. A program whose shapes
// always change fills that, and begins anew.
constexpr size_t kMostNumbers = size_t{8} << 20;

struct HashOfDescription {
  size_t operator()(const CallDescription& description) const {
    size_t hash = description.size();
    for (const int64_t number : description) {
      hash = c10::hash_combine(hash, static_cast<size_t>(number));
    }
    return hash;
  }
};

// One tensor among the results: an argument, a new tensor, or undefined, such as a gradient that
// nothing needs.
struct KeptResult {
  bool is_defined = false;
  int argument = -1; // index among the tensors of the arguments
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype = at::kFloat;

  at::Tensor make(c10::ArrayRef<at::Tensor> arguments) const {
    if (!is_defined) {
      return {};
    }
    return argument >= 0 ? arguments[argument]
                         : at::Tensor(at::detail::empty_strided_meta(sizes, strides, dtype));
  }
};

// One return of the operator: a tensor, or a list of them.
struct KeptReturn {
  bool is_list = false;
  std::vector<KeptResult> results;
};

struct KeptCalls {
  std::mutex lock;
  std::unordered_map<CallDescription, std::vector<KeptReturn>, HashOfDescription> results;
  size_t numbers = 0;
};

KeptCalls& kept_calls() {
  static auto* calls = new KeptCalls();
  return *calls;
}

// Describes a result of a Meta kernel; returns none if a new tensor would not be the same, such as for
// a view of an argument.
std::optional<KeptResult> kept_result(
    const at::Tensor& result,
    c10::ArrayRef<at::Tensor> arguments) {
  KeptResult kept;
  kept.is_defined = result.defined();
  if (!kept.is_defined) {
    return kept;
  }
  bool is_view = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_same(result)) {
      kept.argument = static_cast<int>(i);
      return kept;
    }
    is_view |= arguments[i].is_alias_of(result);
  }
  if (is_view || !result.is_meta() || result.layout() != at::kStrided || !result.has_storage()) {
    return std::nullopt;
  }
  kept.sizes = result.sizes().vec();
  kept.strides = result.strides().vec();
  kept.dtype = result.scalar_type();
  const at::Tensor again = kept.make(arguments);
  const bool is_same = result.key_set() == again.key_set() && result.storage_offset() == 0 &&
      result.storage().nbytes() == again.storage().nbytes() &&
      !result.unsafeGetTensorImpl()->is_wrapped_number();
  return is_same ? std::optional(std::move(kept)) : std::nullopt;
}

} // namespace

std::optional<RepeatedCall> RepeatedCall::make(
    const OperatorPlan& plan,
    c10::ArrayRef<c10::IValue> arguments) {
  if (at::globalContext().deterministicAlgorithms()) {
    return std::nullopt; // a kernel that is not deterministic refuses each call, or warns
  }
  RepeatedCall call(plan);
  // The dtype of quotients of integers, and of much else.
  call.values_.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (const c10::IValue& value : arguments) {
    if (!call.add(value)) {
      return std::nullopt;
    }
  }
  if (call.tensors_.empty()) {
    return std::nullopt; // makes tensors of the sizes that it is given, which is fast
  }
  return call;
}

bool RepeatedCall::add(const c10::IValue& value) {
  enum Kind : int64_t { Nothing, Operand, Number, Real, Truth, Text, Place, Numbers, List };
  if (value.isTensor()) {
    values_.push_back(value.toTensor().defined() ? Operand : Nothing);
    return !value.toTensor().defined() || add(value.toTensor());
  }
  if (value.isNone()) {
    values_.push_back(Nothing);
  } else if (value.isBool()) {
    values_.append({Truth, value.toBool()});
  } else if (value.isInt()) { // dtypes, layouts and memory formats, too
    values_.append({Number, value.toInt()});
  } else if (value.isDouble()) {
    // Optimizers call operators on lists with factors that depend on the step.
    const bool is_factor = plan_->raises_versions;
    values_.append({Real, is_factor ? 0 : std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    values_.append({Place, static_cast<int64_t>(device.type()), device.index()});
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    values_.append({Text, static_cast<int64_t>(text.size())});
    values_.append(text.begin(), text.end());
  } else if (value.isIntList()) {
    const auto numbers = value.toIntVector();
    values_.append({Numbers, static_cast<int64_t>(numbers.size())});
    values_.append(numbers.begin(), numbers.end());
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    values_.append({List, static_cast<int64_t>(elements.size())});
    return std::all_of(elements.begin(), elements.end(), [this](const c10::IValue& element) {
      return add(element);
    });
  } else {
    return false;
  }
  return true;
}

bool RepeatedCall::add(const at::Tensor& tensor) {
  const bool is_number = tensor.is_cpu() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (tensor.layout() != at::kStrided || !tensor.has_storage() ||
      !(tensor.is_meta() || is_number)) {
    return false;
  }
  describe(tensor);
  tensors_.push_back(tensor);
  return true;
}

void RepeatedCall::describe(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  // Kernels refuse to write to memory that overlaps another operand.
  const auto [first, is_new] = storages_.emplace(storage, storages_.size());
  geometry_.append(
      {tensor.dim(), static_cast<int64_t>(tensor.scalar_type()),
       static_cast<int64_t>(tensor.key_set().raw_repr()),
       tensor.unsafeGetTensorImpl()->is_wrapped_number(), first->second, tensor.storage_offset(),
       static_cast<int64_t>(storage->nbytes())});
  geometry_.append(tensor.sizes().begin(), tensor.sizes().end());
  geometry_.append(tensor.strides().begin(), tensor.strides().end());
}

CallDescription RepeatedCall::description() const {
  CallDescription description;
  description.reserve(values_.size() + geometry_.size() + 1);
  description.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(plan_)));
  description.insert(description.end(), values_.begin(), values_.end());
  description.insert(description.end(), geometry_.begin(), geometry_.end());
  return description;
}

bool RepeatedCall::answer(torch::jit::Stack& stack) const {
  std::vector<KeptReturn> returns;
  {
    KeptCalls& calls = kept_calls();
    const std::lock_guard<std::mutex> guard(calls.lock);
    const auto found = calls.results.find(description());
    if (found == calls.results.end()) {
      return false;
    }
    returns = found->second;
  }
  torch::jit::drop(stack, plan_->arguments.size());
  for (const KeptReturn& kept : returns) {
    c10::List<at::Tensor> tensors;
    for (const KeptResult& result : kept.results) {
      tensors.push_back(result.make(tensors_));
    }
    if (kept.is_list) {
      stack.emplace_back(std::move(tensors));
    } else {
      stack.emplace_back(tensors.extract(0));
    }
  }
  return true;
}

void RepeatedCall::keep(const torch::jit::Stack& stack) {
  const CallDescription described = description();
  geometry_.clear();
  storages_.clear();
  for (const at::Tensor& tensor : tensors_) {
    describe(tensor);
  }
  if (description() != described) {
    return; // the kernel has changed an argument
  }
  std::vector<KeptReturn> returns;
  // A result may be a view of another.
  std::vector<at::Tensor> seen(tensors_.begin(), tensors_.end());
  const size_t count = plan_->returned_argument.size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    KeptReturn kept;
    kept.is_list = stack[i].isTensorList();
    if (!kept.is_list && !stack[i].isTensor()) {
      return;
    }
    const auto results = kept.is_list ? stack[i].toListRef() : c10::ArrayRef<c10::IValue>(stack[i]);
    for (const c10::IValue& value : results) {
      const at::Tensor& result = value.toTensor();
      auto kept_one = kept_result(result, seen);
      if (!kept_one.has_value() || kept_one->argument >= static_cast<int>(tensors_.size())) {
        return;
      }
      if (result.defined()) {
        seen.push_back(result);
      }
      kept.results.push_back(std::move(*kept_one));
    }
    returns.push_back(std::move(kept));
  }
  KeptCalls& calls = kept_calls();
  const std::lock_guard<std::mutex> guard(calls.lock);
  calls.numbers += described.size();
  if (calls.numbers > kMostNumbers) {
    calls.results.clear();
    calls.numbers = described.size();
  }
  calls.results.emplace(described, std::move(returns));
}

} // namespace anyrig::virtual_gpu
