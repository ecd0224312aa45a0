// What CUDA's kernels, or the checks before them, ask of the dtypes and sizes of their operands,
// and PyTorch's Meta kernels do not: in shape-only mode nobody else would ask.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

enum class RefusalError { Runtime, Index, NotImplemented };

// One tensor argument has to have a dtype of `dtypes`, or, if there are none, that of argument
// `other`. An argument that is not given has any.
struct DtypeRule {
  int argument;
  std::vector<c10::ScalarType> dtypes;
  int other;
  // {1} stands for the dtype's name and {2} for the other's, {type 1} and {type 2} for C++'s names.
  const char* text;
  RefusalError error = RefusalError::Runtime;
};

struct OperandRules {
  std::vector<DtypeRule> dtypes;
  void (*check)(Arguments) = nullptr; // of sizes, and whatever is no rule of dtypes
};

// By the operator's name without its overload; null where there are none.
const OperandRules* rules_of(const std::string& name, const std::string& overload);

// Raises what CUDA raises.
void check_operands(const OperandRules& rules, Arguments arguments);

} // namespace anyrig::virtual_gpu
