// What CUDA's kernels ask of the dtype that two operands are promoted to.
#pragma once

#include "dispatch/operand_rules.h"

#include <string>

namespace anyrig::virtual_gpu {

// By the operator's name without its overload; null where any dtype will do.
const OperandRules* promoted_dtype_rules_of(const std::string& name);

} // namespace anyrig::virtual_gpu
