// ShapeOnly knows shapes but no values. An operator that needs a value raises an error or, if the
// program asked for it, assumes that every value is one.
#pragma once

#include "memory/memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <optional>
#include <string>

namespace anyrig::virtual_gpu {

// Raises anyrig's error for operator `name`. Set by module.cpp, which has access to the Python
// stack.
using RaiseValueNeeded = std::function<void(const std::string& name, WhyUnknown why)>;
void set_raise_value_needed(RaiseValueNeeded raise);

// Raises unless the program asked to assume values; `why` the values that operator `name` needs are
// unknown is part of the message.
void require_assumed_values(const std::string& name, WhyUnknown why);

// Returns whether the results of this call, or their shapes, depend on values of its arguments.
bool needs_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Returns whether this call is `tensor[mask] = number` (temporaries/selected.h).
bool fills_by_mask(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Returns whether CUDA's kernel makes the host wait: for values that determine the sizes of the
// results, or for indices that are copied from the host.
bool waits_for_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Returns the number of true elements of each mask that determines the sizes of the results; none
// if a mask is unknown or the operator has no such masks.
using MaskCounts = c10::SmallVector<int64_t, 2>;
std::optional<MaskCounts> count_by_masks(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> arguments);

// Puts the results of a call on the stack whose masks have these counts. The arguments on the stack
// are Meta tensors.
void answer_with_counts(
    const c10::OperatorHandle& op,
    const MaskCounts& counts,
    torch::jit::Stack* stack);

// Puts the results of a call on the stack as if every element were one: all elements are nonzero,
// all masks true. The arguments on the stack are Meta tensors. Returns false if the operator has no
// such results.
bool answer_with_ones(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace anyrig::virtual_gpu
