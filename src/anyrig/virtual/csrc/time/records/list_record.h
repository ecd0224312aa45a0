#pragma once

#include "time/records/operator_work.h"

namespace anyrig::virtual_gpu {

// Returns how to describe the operator `name` if it works on lists of tensors with few kernels,
// else null.
Describe find_list(const std::string& name);

} // namespace anyrig::virtual_gpu
