// Products with 4-bit weights.
#pragma once

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {

OperatorRecords narrow_product_records();

} // namespace anyrig::virtual_gpu
