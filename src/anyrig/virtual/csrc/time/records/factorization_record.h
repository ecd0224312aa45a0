// Records of matrix factorizations and of the solvers that use them.
#pragma once

#include "time/records/operator_work.h"

namespace anyrig::virtual_gpu {

// Returns null for operators that factorize no matrix. `name` is without "aten::".
Describe find_factorization(const std::string& name);

} // namespace anyrig::virtual_gpu
