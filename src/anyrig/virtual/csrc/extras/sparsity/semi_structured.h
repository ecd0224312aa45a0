// Matrices with 2:4 sparsity, which keep half of their numbers, in the formats of CUTLASS and
// cuSPARSELt.
#pragma once

#include "dispatch/arguments.h"
#include "operators/cuda_only.h"

#include <c10/core/Device.h>

namespace anyrig::virtual_gpu {

void add_semi_structured(HostKernels& kernels);
void add_pruning(HostKernels& kernels);

// Returns the position of a metadata word in CUTLASS's layout; `column` counts words in a row.
int64_t place_of_word(int64_t row, int64_t column, int64_t rows, bool is_short);

// Limits of the libraries, as in library_limits.h.
void check_semi_structured_mm(Arguments arguments, c10::Device device);
void check_semi_structured_addmm(Arguments arguments, c10::Device device);
void check_cusparselt(Arguments arguments, c10::Device device);

} // namespace anyrig::virtual_gpu
