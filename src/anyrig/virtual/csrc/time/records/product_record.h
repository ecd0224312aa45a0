#pragma once

#include "time/records/operator_work.h"

namespace anyrig::virtual_gpu {

// Returns how to describe the operator `name` if it is a product of matrices, else null.
Describe find_product(const std::string& name);

} // namespace anyrig::virtual_gpu
