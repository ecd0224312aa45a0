// A tensor among the arguments of a call, and the memory that a call moves.
#pragma once

#include "dispatch/operator_plan.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

struct Operand {
  at::Tensor owner;
  at::Tensor twin;
  c10::StorageImpl* shadow; // the twin's storage; null for a container
  ArgumentPlan plan;
};

// Returns what an operator reads and writes. `parts` are the parts of the containers among
// `operands`; `result_bytes` counts its new tensors. Compares the orders of the operands' elements
// if they count.
Moved moved_by(
    Traffic traffic,
    c10::ArrayRef<Operand> operands,
    c10::ArrayRef<Operand> parts,
    double result_bytes,
    bool order_counts);

} // namespace anyrig::virtual_gpu
