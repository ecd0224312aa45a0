// ShapeOnly kernels of operators between padded and nested tensors and of nn.TransformerEncoder's
// fast path. PyTorch has no Meta kernels for them, or its kernels read masks and lengths.
#pragma once

#include "operators/kernels.h"

namespace anyrig::virtual_gpu {

// Registers them for dense and for nested tensors.
void register_nested_shapes(torch::Library& library, Names& names);
void register_shapes_of_nested(torch::Library& nested, Names& nested_names);

} // namespace anyrig::virtual_gpu
