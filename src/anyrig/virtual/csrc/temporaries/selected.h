// The elements that a mask selects: how many there are, and the temporaries of finding them.
#pragma once

#include "temporaries/temporaries.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace anyrig::virtual_gpu {

// Returns the number of true elements of a mask, on the host or on a virtual GPU; none if ShapeOnly
// does not know them and the program does not assume that all are true.
std::optional<int64_t> count_selected(const at::Tensor& mask);

// Appends what CUDA allocates to find the `count` true elements of `mask`: their positions, 8 bytes
// for each dimension. Returns the allocation of the positions.
int find_selected(Temporaries& steps, const at::Tensor& mask, int64_t count);

// Returns whether index_put_(self, indices, values, accumulate, …) is `tensor[mask] = number`, which
// PyTorch computes as a masked fill without counting the mask (canDispatchToMaskedFill of
// aten/src/ATen/native/TensorAdvancedIndexing.cpp).
bool puts_by_one_mask(Arguments arguments);

// The temporaries of `nonzero` and `masked_select`, by operator.
TemporariesOf selection_temporaries_of(const std::string& name);

} // namespace anyrig::virtual_gpu
