// How much work an operator is: the arithmetic it does, and the memory it reads and writes.
#pragma once

#include "time/rates.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace anyrig::virtual_gpu {

// How the arithmetic of an operator follows from its arguments.
enum class Formula {
  None,
  Product,               // (a, b, ...)
  ProductAndSum,         // (sum, a, b, ...)
  GroupedProduct,        // (a, b, ...), each with or without a dimension for the groups
  Convolution,           // (input, weight, ..., transposed at 6, ...)
  PlainConvolution,      // (input, weight, ...)
  TransposedConvolution, // (input, weight, ...)
  ConvolutionBackward,   // (gradient, input, weight, ..., transposed at 7, ..., mask at 10)
};

// Which part of its operands an operator touches.
enum class Traffic {
  All,
  Gather,  // of the first operand only what comes out of it
  Scatter, // of the first operand only what goes into it
  Free,    // none, and nothing is launched: it changes sizes alone
};

// By the name of an operator without "aten::".
Formula formula_of(const std::string& name);
Traffic traffic_of(const std::string& name);
// The argument whose values the operator does not look at, only its sizes; or -1.
int unread_argument_of(const std::string& name);
// Whether it only writes the argument that it changes in place.
bool overwrites(const std::string& name);

// Formulas as in torch.utils.flop_counter, but for the weight's gradient of a convolution in groups,
// which is counted there as if it were not in groups.
struct Count {
  Arithmetic arithmetic;
  double flops_per_result = 0; // of a convolution, to be added for each number of its result
};
Count count(Formula formula, c10::ArrayRef<c10::IValue> arguments);

// How the card's matrix units take numbers of `dtype`, by the program's choice of TF32.
Precision precision_of(at::ScalarType dtype, DenseKind kind);

// Bytes of memory under the elements of `tensor`: an expanded one's are fewer than its elements'.
double touched_bytes(const at::Tensor& tensor);

} // namespace anyrig::virtual_gpu
