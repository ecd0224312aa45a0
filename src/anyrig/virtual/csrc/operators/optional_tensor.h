// A tensor that a schema writes as `Tensor?`: Python's None arrives absent or undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace anyrig::virtual_gpu {

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

} // namespace anyrig::virtual_gpu
