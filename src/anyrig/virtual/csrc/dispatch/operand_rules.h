// Requirements of CUDA's kernels, and of the checks before them, on dtypes and sizes that PyTorch's
// Meta kernels do not check. In ShapeOnly nothing else would check them.
#pragma once

#include "dispatch/arguments.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

enum class RefusalError { Runtime, Index, NotImplemented };

// Requires tensor argument `argument` to have a dtype in `dtypes` or, if that is empty, the dtype
// of argument `other`. An argument that is not given passes.
struct DtypeRule {
  int argument;
  std::vector<c10::ScalarType> dtypes;
  int other;
  // In the text, {1} stands for the argument's dtype and {2} for the other's; {type 1} and {type 2}
  // for the C++ type names.
  const char* text;
  RefusalError error = RefusalError::Runtime;
};

struct OperandRules {
  std::vector<DtypeRule> dtypes;
  void (*check)(Arguments) = nullptr; // checks sizes and all that no DtypeRule expresses
};

// Looks up an operator by its name without overload; returns null if it has no rules.
const OperandRules* rules_of(const std::string& name, const std::string& overload);

// Raises CUDA's error if the arguments break a rule.
void check_operands(const OperandRules& rules, Arguments arguments);

} // namespace anyrig::virtual_gpu
