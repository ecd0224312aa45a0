// Operators between padded and nested tensors, and of the fast path of nn.TransformerEncoder, without
// data: PyTorch has no Meta kernels of them, or reads masks and lengths.
#pragma once

#include "operators/kernels.h"

namespace anyrig::virtual_gpu {

// Into the kernels of dense tensors and into those of nested ones, of a device that keeps no data.
void register_nested_shapes(torch::Library& library, Names& names);
void register_shapes_of_nested(torch::Library& nested, Names& nested_names);

} // namespace anyrig::virtual_gpu
