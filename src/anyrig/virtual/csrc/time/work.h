// The work of an operator: its arithmetic, and the memory that it reads and writes.
#pragma once

#include "time/rates.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace anyrig::virtual_gpu {

// How the FLOPs of an operator follow from its arguments.
enum class Formula {
  None,
  Product,               // (a, b, ...)
  ProductAndSum,         // (summand, a, b, ...)
  GroupedProduct,        // (a, b, ...), each with or without a group dimension
  Convolution,           // (input, weight, ..., transposed at 6, ...)
  PlainConvolution,      // (input, weight, ...)
  TransposedConvolution, // (input, weight, ...)
  ConvolutionBackward,   // (gradient, input, weight, ..., transposed at 7, ..., mask at 10)
};

// Which part of its operands an operator accesses.
enum class Traffic {
  All,
  Gather,  // reads from the first operand only the elements that it returns
  Scatter, // writes to the first operand only the given elements
  Free,    // nothing is accessed or launched: the operator only changes sizes
};

// `name` is the name of an operator without "aten::".
Formula formula_of(const std::string& name);
Traffic traffic_of(const std::string& name);
// Returns the index of the argument of which the operator reads only the sizes; -1 if none.
int unread_argument_of(const std::string& name);
// Returns whether the operator only writes, and does not read, the argument it changes in place.
bool overwrites(const std::string& name);

// The formulas are those of torch.utils.flop_counter, except for the weight gradient of a grouped
// convolution, for which flop_counter ignores the groups.
struct Count {
  Arithmetic arithmetic;
  double flops_per_result = 0; // for a convolution, added per element of its result
};
Count count(Formula formula, c10::ArrayRef<c10::IValue> arguments);

// Returns the precision at which matrix units process `dtype`, given the program's TF32 settings.
Precision precision_of(at::ScalarType dtype, DenseKind kind);

// Returns the bytes of memory under the elements of `tensor`, which are fewer than the elements'
// bytes for an expanded tensor.
double touched_bytes(const at::Tensor& tensor);

} // namespace anyrig::virtual_gpu
