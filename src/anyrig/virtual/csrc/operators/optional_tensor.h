// An argument of schema type `Tensor?`: Python's None arrives as an absent or an undefined tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace anyrig::virtual_gpu {

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

} // namespace anyrig::virtual_gpu
