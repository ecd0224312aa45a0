// Dtypes that CPU kernels accept and CUDA kernels refuse, such as integers in a matrix product. A
// call that fails on a GPU must fail here too, with the same message.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

struct Refusal {
  std::string kernel; // the name in CUDA's error
  std::vector<c10::ScalarType> dtypes;
  // Returns whether a call with these arguments reaches that kernel; null: every call does.
  bool (*applies)(Arguments) = nullptr;
};

// Looks up an operator by its name without overload; returns null if CUDA refuses no dtype that the
// CPU accepts. Sources: the dtypes that PyTorch's operator database lists for each device, and the
// dispatch macros below aten/src/ATen/native/cuda.
const Refusal* refusal_of(const std::string& name);

// Raises NotImplementedError if `dtype`, the dtype of the first tensor in `arguments`, is refused.
void check_not_refused(const Refusal& refusal, c10::ScalarType dtype, Arguments arguments);

} // namespace anyrig::virtual_gpu
