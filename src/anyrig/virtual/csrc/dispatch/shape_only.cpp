#include "dispatch/shape_only.h"

#include "device/device.h"
#include "dispatch/each_tensor.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "temporaries/selected.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

RaiseValueNeeded& raise_value_needed() {
  static auto* raise = new RaiseValueNeeded();
  return *raise;
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.defined() &&
      (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

bool has_mask(const c10::IValue& indices) {
  if (!indices.isOptionalTensorList()) {
    return false;
  }
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList()) {
    if (index.has_value() && is_mask(*index)) {
      return true;
    }
  }
  return false;
}

bool has_host_index(const c10::IValue& indices) {
  bool found = false;
  for_each_tensor(
      indices, [&found](const at::Tensor& index) { found |= index.defined() && index.is_cpu(); });
  return found;
}

bool is_index_operator(const std::string& name) {
  return name == "aten::index" || name == "aten::_unsafe_index" || name == "aten::index_put_" ||
      name == "aten::_index_put_impl_";
}

at::Tensor meta_indices(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
}

// Replaces each mask of k dimensions by k index tensors, which select as many elements as the mask:
// all of them if `counts` is null.
c10::List<std::optional<at::Tensor>> without_masks(
    const c10::IValue& indices,
    const MaskCounts* counts) {
  c10::List<std::optional<at::Tensor>> result;
  size_t next = 0;
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList()) {
    if (!index.has_value() || !is_mask(*index)) {
      result.push_back(index);
      continue;
    }
    const int64_t count = counts == nullptr ? index->numel() : (*counts)[next++];
    for (int64_t dimension = 0; dimension < index->dim(); ++dimension) {
      result.push_back(meta_indices({count}));
    }
  }
  return result;
}

bool selects_by_mask(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::masked_select" && op.schema().overload_name().empty();
}

} // namespace

void set_raise_value_needed(RaiseValueNeeded raise) {
  raise_value_needed() = std::move(raise);
}

void require_assumed_values(const std::string& name, WhyUnknown why) {
  if (settings().assume_values) {
    return;
  }
  raise_value_needed()(name, why);
  TORCH_CHECK(false, name, " needs a value that a shape-only rehearsal does not have");
}

bool needs_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& name = op.schema().name();
  if (is_index_operator(name)) {
    return has_mask(arguments[1]);
  }
  const bool has_sizes = // as numbers among the arguments
      (name == "aten::repeat_interleave" && !arguments.back().isNone()) ||
      (name == "aten::_ctc_loss" && op.schema().overload_name().empty());
  if (has_sizes) {
    return false;
  }
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

bool fills_by_mask(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& name = op.schema().name();
  return (name == "aten::index_put_" || name == "aten::_index_put_impl_") &&
      puts_by_one_mask(arguments);
}

bool waits_for_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& name = op.schema().name();
  if (is_index_operator(name)) {
    return has_host_index(arguments[1]) ||
        (has_mask(arguments[1]) && !fills_by_mask(op, arguments));
  }
  if (name == "aten::equal" && arguments[0].toTensor().layout() == at::kStrided) {
    const at::Tensor& self = arguments[0].toTensor();
    const at::Tensor& other = arguments[1].toTensor();
    const bool are_one = self.is_alias_of(other) && self.dtype() == other.dtype() &&
        self.storage_offset() == other.storage_offset() && self.strides() == other.strides();
    return self.sizes() == other.sizes() && self.numel() > 0 && !are_one;
  }
  return needs_values(op, arguments);
}

std::optional<MaskCounts> count_by_masks(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments) {
  const bool indexes = is_index_operator(op.schema().name());
  if (!indexes && !selects_by_mask(op)) {
    return std::nullopt;
  }
  MaskCounts counts;
  bool are_known = true;
  for_each_tensor(arguments[1], [&](const at::Tensor& mask) {
    if (!is_mask(mask)) {
      return;
    }
    const at::Tensor values = is_virtual(mask) ? known_values(mask) : mask;
    are_known = are_known && values.defined() && values.is_cpu();
    if (are_known) {
      counts.push_back(at::count_nonzero(values).item<int64_t>());
    }
  });
  if (!are_known || counts.empty()) {
    return std::nullopt;
  }
  if (!indexes) {
    // The mask is expanded to the sizes of the result.
    const at::Tensor& mask = arguments[1].toTensor();
    const auto sizes = at::infer_size(arguments[0].toTensor().sizes(), mask.sizes());
    counts[0] *= c10::multiply_integers(sizes) / std::max<int64_t>(mask.numel(), 1);
  }
  return counts;
}

void answer_with_counts(
    const c10::OperatorHandle& op,
    const MaskCounts& counts,
    torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack->size() - count;
  if (is_index_operator(op.schema().name())) {
    (*stack)[first + 1] = without_masks((*stack)[first + 1], &counts);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  const at::Tensor self = (*stack)[first].toTensor();
  torch::jit::drop(*stack, count);
  stack->emplace_back(at::empty({counts[0]}, self.options()));
}

bool answer_with_ones(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const size_t first = stack->size() - schema.arguments().size();
  if (is_index_operator(name)) {
    (*stack)[first + 1] = without_masks((*stack)[first + 1], /*counts=*/nullptr);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return true;
  }
  if (!schema.overload_name().empty()) {
    return false;
  }
  const auto answer = [&](c10::IValue value) {
    torch::jit::drop(*stack, schema.arguments().size());
    stack->push_back(std::move(value));
    return true;
  };
  if (name == "aten::nonzero") {
    const at::Tensor self = (*stack)[first].toTensor();
    return answer(meta_indices({self.numel(), self.dim()}));
  }
  if (name == "aten::masked_select") {
    const at::Tensor self = (*stack)[first].toTensor();
    const at::Tensor mask = (*stack)[first + 1].toTensor();
    const auto sizes = at::infer_size(self.sizes(), mask.sizes());
    return answer(at::empty(at::IntArrayRef{c10::multiply_integers(sizes)}, self.options()));
  }
  if (name == "aten::equal") {
    return answer(true);
  }
  return false;
}

} // namespace anyrig::virtual_gpu
