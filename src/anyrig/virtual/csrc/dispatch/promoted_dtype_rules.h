// Requirements of CUDA's kernels on the dtype that two operands are promoted to.
#pragma once

#include "dispatch/operand_rules.h"

#include <string>

namespace anyrig::virtual_gpu {

// Looks up an operator by its name without overload; returns null if every dtype is allowed.
const OperandRules* promoted_dtype_rules_of(const std::string& name);

} // namespace anyrig::virtual_gpu
