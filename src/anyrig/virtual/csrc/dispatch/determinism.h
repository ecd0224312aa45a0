// Kernels whose sums a card adds up in an order that differs from run to run. A program that asked
// for deterministic algorithms must have them refused, as on a card; the CPU's kernels here are
// deterministic and refuse nothing.
#pragma once

#include "dispatch/arguments.h"

#include <string>

namespace anyrig::virtual_gpu {

struct Unordered {
  const char* kernel; // the name that CUDA's error gives
  // Whether a call with these arguments is one; null: every call is.
  bool (*applies)(Arguments) = nullptr;
};

// By the operator's name without its overload; null for one that is deterministic, or has another
// kernel for the purpose.
const Unordered* unordered_of(const std::string& name);

// Raises RuntimeError, or warns if the program prefers that, where deterministic algorithms are on.
void check_deterministic(const Unordered& unordered, Arguments arguments);

} // namespace anyrig::virtual_gpu
