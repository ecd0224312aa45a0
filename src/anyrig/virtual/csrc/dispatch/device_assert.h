// Values that a kernel cannot take: indices outside what they index, chances outside 0 to 1. A card's
// kernels stop the device there, "device-side assert triggered"; the CPU's raise IndexError or
// RuntimeError.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

namespace anyrig::virtual_gpu {

// Raises torch.AcceleratorError if `error`, which the CPU's kernel of `name` raised, is of that
// kind, after writing what it says where a card's kernel writes it: to the standard error stream.
// Errors of dimensions, which CUDA raises as the CPU does, are not.
void raise_if_device_assert(const c10::Error& error, const std::string& name, c10::Device device);

// The same for kernels of this library: `what` a kernel of `name` found.
[[noreturn]] void raise_device_assert(
    const std::string& what, const std::string& name, c10::Device device);

} // namespace anyrig::virtual_gpu
