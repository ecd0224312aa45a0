#pragma once

#include "time/records/operator_work.h"

namespace anyrig::virtual_gpu {

// How an operator that is bound by memory accesses its operands.
struct MemoryRule {
  Access access = Access::Pointwise;
  double read_passes = 1; // a kernel that cannot keep its operands on chip reads them again
  double kernels = 1;
};

MemoryRule memory_rule_of(const std::string& name);

// Returns how to describe the operator `name` if its arguments say more than the rule, else null.
Describe find_memory(const std::string& name);

} // namespace anyrig::virtual_gpu
