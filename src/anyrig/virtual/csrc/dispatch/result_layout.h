// The layout of CUDA's results where the CPU or Meta kernel chooses another, and the results of
// operators that have no Meta kernel. Compute and ShapeOnly count the same bytes only if both lay
// out results alike.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>

#include <optional>

namespace anyrig::virtual_gpu {

struct ResultLayout {
  // Applies to results with as many dimensions as the format has; Contiguous applies to all
  // results.
  std::optional<at::MemoryFormat> format;
  at::Tensor like; // if defined: Meta results of the same sizes get its strides
  c10::ArrayRef<size_t> empty; // indices of the results that CUDA leaves empty

  // Converts the `count` results of a kernel to this layout, in place.
  void apply(c10::IValue* results, size_t count) const;
};

// Chooses the layout from the arguments of a call.
using ChooseLayout = ResultLayout (*)(Arguments arguments);

// The layouts of kernels that only write contiguous results, and of kernels that keep the strides
// of the first argument.
ResultLayout contiguous_layout(Arguments arguments);
ResultLayout strides_of_first(Arguments arguments);

// The result of an operator without a Meta kernel, which has the size of an argument.
struct MissingMeta {
  std::optional<size_t> like; // index of that argument; none if the operator returns nothing
};

// Returns the layout that TensorIterator, and so CUDA, chooses for a pointwise operator that reads
// the tensors `read`. Used in ShapeOnly, where some Meta kernels make contiguous results only.
ResultLayout pointwise_layout(at::ArrayRef<at::Tensor> read);

} // namespace anyrig::virtual_gpu
