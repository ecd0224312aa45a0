#include "dispatch/result_layout.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

size_t dimensions_of(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast ? 4 : 5;
}

} // namespace

void ResultLayout::apply(c10::IValue* results, size_t count) const {
  if (!format.has_value() && !like.defined() && empty.empty()) {
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!results[i].isTensor() || !results[i].toTensor().defined()) {
      continue;
    }
    const at::Tensor& result = results[i].toTensor();
    if (format.has_value() &&
        (*format == at::MemoryFormat::Contiguous ||
         static_cast<size_t>(result.dim()) == dimensions_of(*format))) {
      results[i] = result.contiguous(*format);
    } else if (
        like.defined() && result.is_meta() && result.sizes() == like.sizes() &&
        like.is_non_overlapping_and_dense()) {
      result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
    }
  }
  for (const size_t i : empty) {
    if (results[i].toTensor().numel() != 0) {
      results[i] = at::empty({0}, results[i].toTensor().options());
    }
  }
}

ResultLayout contiguous_layout(Arguments /*arguments*/) {
  return {at::MemoryFormat::Contiguous, {}, {}};
}

ResultLayout strides_of_first(Arguments arguments) {
  return {std::nullopt, arguments[0].toTensor(), {}};
}

ResultLayout pointwise_layout(at::ArrayRef<at::Tensor> read) {
  const bool all_contiguous = std::all_of(
      read.begin(), read.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  if (all_contiguous) {
    return {};
  }
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::kBool, at::kMeta)
      .add_owned_output(at::Tensor());
  for (const at::Tensor& tensor : read) {
    config.add_owned_const_input(tensor);
  }
  return {std::nullopt, config.build().output(), {}};
}

} // namespace anyrig::virtual_gpu
