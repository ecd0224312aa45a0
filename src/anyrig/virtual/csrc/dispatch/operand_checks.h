// The checks of a call against its operator's record: dtypes, sizes and requests for determinism
// that CUDA refuses and the CPU or Meta kernel does not. A call that fails on a GPU must fail here
// too, with the same exception class and message.
#pragma once

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {

// Raises NotImplementedError if the record refuses `dtype`, the dtype of the first tensor.
void check_not_refused(const OperatorRecord& record, c10::ScalarType dtype, Arguments arguments);

// Raises NotImplementedError if the first two arguments, each a tensor or a number, promote to one
// of `dtypes`. `kernel` is the name in CUDA's error.
void check_promoted(const char* kernel, DtypeSet dtypes, Arguments arguments);

// Raises IndexError unless the second argument is a dimension of the first.
void check_dimension(Arguments arguments);

// Raises CUDA's error if the arguments break one of the record's rules.
void check_operands(const OperatorRecord& record, Arguments arguments);

// Raises RuntimeError, or warns under warn_only, if deterministic algorithms are on and the call is
// nondeterministic on CUDA.
void check_deterministic(const OperatorRecord& record, Arguments arguments);

} // namespace anyrig::virtual_gpu
