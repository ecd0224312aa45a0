// What a card calls the kernels that the CPU's errors name: `"silu_cpu" not implemented for 'Long'`
// is `"silu_cuda" not implemented for 'Long'` there.
#pragma once

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {

// If `error`, which a kernel of the CPU raised, says that the kernel does not take a dtype, raises
// NotImplementedError with CUDA's name where that differs; factors of two dtypes have CUDA's names too.
void raise_with_cuda_name(const c10::Error& error);

} // namespace anyrig::virtual_gpu
