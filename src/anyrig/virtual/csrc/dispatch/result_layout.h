// The layout of CUDA's results where the CPU or Meta kernel chooses another, and the results of
// operators that have no Meta kernel. Compute and ShapeOnly count the same bytes only if both lay
// out results alike.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>

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

// Returns the function that chooses the layout from a call's arguments; null if the kernels agree.
using ChooseLayout = ResultLayout (*)(Arguments arguments);
ChooseLayout choose_layout_of(const std::string& full_name);

// An operator without a Meta kernel whose result has the size of an argument.
struct MissingMeta {
  std::optional<size_t> like; // index of that argument; none if the operator returns nothing
};

// Returns the layout that TensorIterator, and so CUDA, chooses for a pointwise operator that reads
// the tensors `read`. Used in ShapeOnly, where some Meta kernels make contiguous results only.
ResultLayout pointwise_layout(at::ArrayRef<at::Tensor> read);

// Returns null if the operator has a Meta kernel or its result sizes update_owner no simple rule.
const MissingMeta* missing_meta_of(const std::string& full_name);

} // namespace anyrig::virtual_gpu
