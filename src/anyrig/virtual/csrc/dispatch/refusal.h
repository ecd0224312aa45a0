// Numbers that the CPU computes with and a card refuses, such as integers in a matrix product. What
// fails on a card must fail here too, with its words.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

struct Refusal {
  std::string kernel; // the name that CUDA's error gives
  std::vector<c10::ScalarType> dtypes;
  // Whether a call with these arguments comes to that kernel; null: every call does.
  bool (*applies)(Arguments) = nullptr;
};

// What CUDA's kernels refuse and the CPU's do not, by the operator's name without its overload;
// null where they agree. From the dtypes that PyTorch's operator database lists for each device,
// and the dispatch macros below aten/src/ATen/native/cuda.
const Refusal* refusal_of(const std::string& name);

// Raises NotImplementedError if `dtype`, that of the first tensor of `arguments`, is refused.
void check_not_refused(const Refusal& refusal, c10::ScalarType dtype, Arguments arguments);

} // namespace anyrig::virtual_gpu
