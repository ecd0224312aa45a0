// TORCH_NCCL_NAN_CHECK: raises an error if a rank is about to send a NaN.
#pragma once

#include "collectives/collective.h"

namespace anyrig::virtual_gpu {

// Raises torch.AcceleratorError, "device-side assert triggered", if a row to send contains a NaN,
// as PyTorch's checkForNaN kernel does. Call this before the collective is announced to the other
// ranks. Rows with unknown values (ShapeOnly) are ignored.
void check_nan(const Collective& collective, c10::DeviceIndex device);
void check_nan(const at::Tensor& row, c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
