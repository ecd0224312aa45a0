// Foreign operators whose result sizes ShapeOnly cannot determine.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <string>

namespace anyrig::virtual_gpu {

// Raises anyrig's error for operator `name`. Set by module.cpp, which has access to the Python
// stack.
using RaiseSizesUnknown = std::function<void(const std::string& name)>;
void set_raise_sizes_unknown(RaiseSizesUnknown raise);
[[noreturn]] void raise_sizes_unknown(const std::string& name);

// Returns whether the operator has a kernel that works without values. A fallback for all operators
// does not count.
bool infers_sizes(const c10::OperatorHandle& op);

} // namespace anyrig::virtual_gpu
