#pragma once

#include "operators/kernels.h"

#include <torch/library.h>

namespace anyrig::virtual_gpu {

// Attention of nested tensors of layout strided, into the library of their key.
void register_nested_attention(torch::Library& library, Names& names);

} // namespace anyrig::virtual_gpu
