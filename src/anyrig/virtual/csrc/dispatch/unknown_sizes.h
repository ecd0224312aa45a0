// Operators of other libraries that, in ShapeOnly, do not tell what sizes their results have.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>

namespace anyrig::virtual_gpu {

// Raises anyrig's error for operator `name`; set by module.cpp, which knows Python's frames.
using RaiseSizesUnknown = std::function<void(const std::string& name)>;
void set_raise_sizes_unknown(RaiseSizesUnknown raise);
[[noreturn]] void raise_sizes_unknown(const std::string& name);

// Whether there is a kernel that works without values; a fallback for all operators is none.
bool tells_sizes(const c10::OperatorHandle& op);

} // namespace anyrig::virtual_gpu
