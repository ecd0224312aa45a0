// Matrices with 2:4 sparsity, which keep half of their numbers, in the formats of CUTLASS and
// cuSPARSELt.
#pragma once

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {

OperatorRecords semi_structured_records();
OperatorRecords pruning_records();

// Returns the position of a metadata word in CUTLASS's layout; `column` counts words in a row.
int64_t place_of_word(int64_t row, int64_t column, int64_t rows, bool is_short);

} // namespace anyrig::virtual_gpu
