// What a card's libraries refuse and the CPU's take: sizes, and cards that are too old.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/Device.h>

#include <string>

namespace anyrig::virtual_gpu {

// Raises RuntimeError with CUDA's text if the library cannot compute a call with these arguments on
// `device`.
using CheckLimits = void (*)(Arguments arguments, c10::Device device);

// By the operator's name without its overload; null where there is no limit.
CheckLimits limits_of(const std::string& name);

} // namespace anyrig::virtual_gpu
