// CUDA kernels that add in an order that differs from run to run. A program that asks for
// deterministic algorithms must get CUDA's error for them, although the CPU kernels that compute
// here are deterministic.
#pragma once

#include "dispatch/arguments.h"

#include <string>

namespace anyrig::virtual_gpu {

struct Nondeterminism {
  const char* kernel; // the name in CUDA's error
  // Returns whether a call with these arguments is nondeterministic; null: every call is.
  bool (*applies)(Arguments) = nullptr;
};

// Looks up an operator by its name without overload. Returns null if the operator is deterministic
// on CUDA or has a deterministic alternative.
const Nondeterminism* nondeterminism_of(const std::string& name);

// Raises RuntimeError, or warns under warn_only, if deterministic algorithms are on.
void check_deterministic(const Nondeterminism& nondeterminism, Arguments arguments);

} // namespace anyrig::virtual_gpu
