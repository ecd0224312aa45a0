// Limits of CUDA's libraries that the CPU does not have: sizes, and GPUs that are too old.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/Device.h>

#include <string>

namespace anyrig::virtual_gpu {

// Raises RuntimeError with CUDA's text if the library cannot compute a call with these arguments on
// `device`.
using CheckLimits = void (*)(Arguments arguments, c10::Device device);

// Looks up an operator by its name without overload; returns null if it has no limits.
CheckLimits limits_of(const std::string& name);

} // namespace anyrig::virtual_gpu
