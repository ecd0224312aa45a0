// Products of 8-bit and 4-bit floats with scales: single products and groups of them.
#pragma once

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {

OperatorRecords scaled_product_records();
OperatorRecords scaled_group_records();

} // namespace anyrig::virtual_gpu
