// ShapeOnly knows shapes and no values. What needs a value stops here, or is given the value one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

namespace anyrig::virtual_gpu {

// Raises anyrig's error for operator `name`; set by module.cpp, which knows Python's frames.
using RaiseValueNeeded = std::function<void(const std::string& name)>;
void set_raise_value_needed(RaiseValueNeeded raise);

// Returns in the mode that assumes values; otherwise raises.
void require_assumed_values(const std::string& name);

// Whether the results of this call, or their shapes, depend on values of its arguments.
bool needs_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Whether this is `tensor[mask] = number`, which PyTorch fills by the mask without counting it
// (canDispatchToMaskedFill of aten/src/ATen/native/TensorAdvancedIndexing.cpp).
bool fills_by_mask(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Whether a card's kernel makes the host wait: until it knows values that decide on the sizes of the
// results, or until indices are copied from the host.
bool waits_for_values(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Answers a call that needs values as if every element were one: all are nonzero, all masks are true. The
// arguments on the stack are Meta tensors already. False where there is no such answer.
bool answer_with_ones(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace anyrig::virtual_gpu
