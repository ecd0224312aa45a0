// What the results of a card are like, where the CPU's or Meta's kernel makes others, or where Meta
// has no kernel. The two modes count the same bytes only if both lay results out in the same way.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>

namespace anyrig::virtual_gpu {

struct CardResults {
  // Of the results that have as many dimensions as the format is of; of all, if contiguous.
  std::optional<at::MemoryFormat> format;
  at::Tensor like; // if defined: Meta's have its strides
  c10::ArrayRef<size_t> empty; // the results that a card leaves empty

  // Turns what the kernel returned into that.
  void put_right(c10::IValue* results, size_t count) const;
};

// Tells by the arguments of a call; null for operators whose kernels agree.
using ResultsOnCard = CardResults (*)(Arguments arguments);
ResultsOnCard results_on_card(const std::string& full_name);

// An operator that Meta has no kernel for, of results that are easily told.
struct WithoutMeta {
  std::optional<size_t> like; // the argument whose size the result has; without: it returns nothing
};

// For pointwise operators of ShapeOnly, by the tensors that they read: laid out as TensorIterator does
// it, which CUDA's kernels use. Some kernels of Meta know contiguous results only.
CardResults pointwise_results(at::ArrayRef<at::Tensor> read);

// Null for operators that have one, or whose results are not easily told.
const WithoutMeta* without_meta(const std::string& full_name);

} // namespace anyrig::virtual_gpu
