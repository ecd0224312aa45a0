#pragma once

#include "operators/kernels.h"

#include <torch/library.h>

namespace anyrig::virtual_gpu {

// Registers attention for nested tensors of layout strided.
void register_nested_attention(torch::Library& library, Names& names);

} // namespace anyrig::virtual_gpu
