// Values that a kernel cannot process: indices out of range, probabilities outside 0 to 1. CUDA
// kernels stop with "device-side assert triggered"; CPU kernels raise IndexError or RuntimeError.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

namespace anyrig::virtual_gpu {

// Raises torch.AcceleratorError if `error`, raised by the CPU kernel of operator `name`, is about
// such values; first writes its message to standard error, as a CUDA kernel does. Returns for
// errors about dimensions, which CUDA raises as the CPU does.
void raise_if_device_assert(const c10::Error& error, const std::string& name, c10::Device device);

// Raises the same error for a kernel of this library; `what` describes the invalid value.
[[noreturn]] void raise_device_assert(
    const std::string& what,
    const std::string& name,
    c10::Device device);

} // namespace anyrig::virtual_gpu
