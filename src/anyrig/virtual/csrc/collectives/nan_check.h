// TORCH_NCCL_NAN_CHECK: what a rank is about to give is looked through for numbers that are none.
#pragma once

#include "collectives/collective.h"

namespace anyrig::virtual_gpu {

// Raises torch.AcceleratorError, "device-side assert triggered", as the check's kernel does on a
// card; before any rank is told of the collective. What is not known has nothing to find.
void check_nan(const Collective& collective, c10::DeviceIndex device);
void check_nan(const at::Tensor& row, c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
