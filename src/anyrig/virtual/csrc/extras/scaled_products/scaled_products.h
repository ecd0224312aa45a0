// Products of 8-bit and 4-bit floats with scales: single products and groups of them.
#pragma once

#include "dispatch/arguments.h"
#include "operators/cuda_only.h"

#include <c10/core/Device.h>

namespace anyrig::virtual_gpu {

void add_scaled_products(HostKernels& kernels);
void add_scaled_groups(HostKernels& kernels);

// Limits of GPUs and their libraries, as in library_limits.h.
void check_scaled_mm(Arguments arguments, c10::Device device);
void check_scaled_mm_v2(Arguments arguments, c10::Device device);
void check_scaled_grouped_mm(Arguments arguments, c10::Device device);
void check_scaled_grouped_mm_v2(Arguments arguments, c10::Device device);

} // namespace anyrig::virtual_gpu
