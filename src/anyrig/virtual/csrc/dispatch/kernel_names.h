// CUDA's names of the kernels that CPU errors name: `"silu_cpu" not implemented for 'Long'` reads
// `"silu_cuda" not implemented for 'Long'` on a GPU.
#pragma once

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {

// Raises NotImplementedError with CUDA's kernel name if `error`, raised by a CPU kernel, is about
// an unsupported dtype and the names differ. Also gives CUDA's text for matrix factors of two
// dtypes. Returns otherwise.
void raise_with_cuda_name(const c10::Error& error);

} // namespace anyrig::virtual_gpu
