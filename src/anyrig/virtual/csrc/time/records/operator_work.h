// From the call of an operator to the records of its work.
//
//   schema     WorkRules: which family, how often it reads its operands (once per operator)
//   arguments  WorkRules::describe: geometry, before the kernel runs and takes the arguments
//   operands   complete: the bytes, after the kernel has run and the results are known
#pragma once

#include "time/work.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace anyrig::virtual_gpu {

using Works = c10::SmallVector<Work, 1>;
using Arguments = c10::ArrayRef<c10::IValue>;

// Which part of its operands an operator accesses.
enum class Traffic {
  All,
  Gather,  // reads from the first operand only the elements that it returns
  Scatter, // writes to the first operand only the given elements
  Rows,    // reads from the first operand the rows whose indices are the second
  Free,    // nothing is accessed or launched: the operator only changes sizes
};

// What is known about the work of a call: at first what the arguments say.
struct Description {
  Works works; // empty: one memory-bound kernel, as the rules say
  double read_passes = 0; // how often its kernels read the operands; 0: as the rules say
};

struct WorkRules;

using Describe = void (*)(const WorkRules& rules, Arguments arguments, Description& description);

struct WorkRules {
  // `name` is the name of the operator without "aten::".
  WorkRules(const std::string& name, const c10::FunctionSchema& schema);

  Describe describe = nullptr; // null: the arguments say no more than the operands
  bool multiplies = false; // a matrix product or a convolution, whose time follows from its FLOPs
  Traffic traffic = Traffic::All;
  Access access = Access::Pointwise;
  double read_passes = 1; // how often the kernels read the operands
  double kernels = 1;
  // The indices of arguments in the schema; -1 for arguments that the operator does not have.
  struct Places {
    int bias, stride, padding, dilation, transposed, output_padding, groups, output_mask, training,
        dimension;
  } places{};
};

// What a call accesses, whatever the number of passes.
struct Moved {
  double read = 0;
  double written = 0;
  double footprint = 0;
  double elements = 0; // of the largest operand; 0: unknown, or not all are accessed
  bool is_strided = false; // the largest operands differ in their fastest dimension
};

// Returns whether the time of a call depends on the orders of its operands' elements.
bool order_counts(const WorkRules& rules, const Description& description);

// Completes `description` by the bytes.
void complete(const WorkRules& rules, const Moved& moved, Description& description);

// Returns the index of the argument of which the operator reads only the sizes; -1 if none.
int unread_argument_of(const std::string& name);
// Returns whether the operator only writes, and does not read, the argument it changes in place.
bool overwrites(const std::string& name);

// Returns the precision at which GPUs process `dtype`, given the program's TF32 settings for
// `family`.
Precision precision_of(at::ScalarType dtype, Family family);

// Returns the bytes of memory under the elements of `tensor`, which are fewer than the elements'
// bytes for an expanded tensor.
double touched_bytes(const at::Tensor& tensor);

// Returns whether several elements of `tensor` are one in memory, as in an expanded tensor.
bool repeats_elements(const at::Tensor& tensor);

// Returns the dimension along which neighbouring elements are adjacent in memory; -1 if none.
int64_t fastest_dimension(const at::Tensor& tensor);

} // namespace anyrig::virtual_gpu
