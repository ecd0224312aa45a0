// The record of an operator: all that a virtual GPU must know about it beyond its schema.
//
//   operators/pooling.cpp       const DeclaredRecords kPoolingRecords({
//                                   {{"avg_pool3d"}, {.kernel = "avg_pool3d_out_cuda", …}}, …});
//                                     │ when the library is loaded
//                                     ▼
//   record_of("avg_pool3d")     one table; two records of one operator are an error
//                                     │ once an overload, when its kernel is registered
//                                     ▼
//   OperatorPlan                what a call needs to know (operator_plan.h)
//
// A record lists only what sets an operator apart: the CPU computes most operators as CUDA does,
// and these have none. It is declared next to the operator's kernels, in the file of its family.
#pragma once

#include "dispatch/arguments.h"
#include "dispatch/dtype_set.h"
#include "dispatch/result_layout.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

enum class RefusalError { Runtime, Index, Type, NotImplemented };

// Requires tensor argument `argument` to have a dtype in `dtypes` or, if that is empty, the dtype
// of argument `other`. An argument that is not given passes. Made by `dtype_in` and `same_dtype`.
struct DtypeRule {
  int argument;
  DtypeSet dtypes;
  int other;
  // In the text, {1} stands for the argument's dtype and {2} for the other's; {type 1} and {type 2}
  // for the C++ type names.
  const char* text;
  RefusalError error = RefusalError::Runtime;
};

// The text of a rule that compares two dtypes.
inline constexpr const char* kFound = "expected scalar type {2} but found {1}";

inline DtypeRule dtype_in(
    int argument,
    DtypeSet dtypes,
    const char* text,
    RefusalError error = RefusalError::Runtime) {
  return {argument, dtypes, 0, text, error};
}

inline DtypeRule same_dtype(
    int argument,
    int other,
    const char* text,
    RefusalError error = RefusalError::Runtime) {
  return {argument, {}, other, text, error};
}

// Returns the rule that refuses a complex first tensor.
inline std::vector<DtypeRule> refuse_complex(
    const char* text,
    RefusalError error = RefusalError::Runtime) {
  return {dtype_in(0, kReal, text, error)};
}

// The check that CUDA applies to operands on several devices; each has its own messages.
enum class DeviceCheck {
  Wrapper,     // the generated wrapper: compares every tensor, including CPU scalars
  Iterator,    // TensorIterator: allows CPU scalars
  Output,      // as Iterator for operands; the sizes of the output are set on their device
  Addcmul,     // as Iterator, but allows a CPU scalar in the last place only
  Mask,        // the mask is on the device of the tensor that is filled
  Indices,     // the indexed tensor determines the device; its indices may be on the CPU
  WrittenIndices, // the tensor that is written to determines the device; its indices move there
  Convolution, // compares the types, which name the device, then as Wrapper
  Foreach,     // no check: tensors of several devices are processed one by one
  Nothing,     // no check: sizes of nested tensors and sequence lengths live on the CPU
};

// How an operator that CUDA has for nested tensors of layout strided runs.
enum class NestedKernel {
  OfHost,      // PyTorch's CPU kernel on virtual tensors: it calls operators on their parts
  OnTwins,     // PyTorch's CPU kernel on twins, since CUDA has a kernel of its own. Meta tensors
               // cannot form a nested tensor, so ShapeOnly runs the kernel as OfHost.
  OnTwinsOrWrittenHere, // as OnTwins, but ShapeOnly has a kernel of this library
  WrittenHere, // a kernel of this library (register_nested_kernels)
};

// A kernel for the CPU that computes what CUDA computes. It runs on twins, as PyTorch's CPU kernels
// do, and knows nothing of virtual devices.
struct HostKernel {
  const char* overload; // "" if the operator's name has none
  c10::KernelFunction function;
  c10::DispatchKey key = c10::DispatchKey::CUDA; // under which the operator is registered
};

template <class Function>
HostKernel host_kernel(
    Function* function,
    const char* overload = "",
    c10::DispatchKey key = c10::DispatchKey::CUDA) {
  return {overload, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function), key};
}

struct OperatorRecord {
  // What a GPU refuses. Sources: the dtypes that PyTorch's operator database lists for each device,
  // and the checks and dispatch macros below aten/src/ATen/native/cuda.

  // The name of the kernel in CUDA's errors about dtypes. An error of the CPU kernel gets this name
  // too; without it, the name of the CPU kernel with "_cuda" (kernel_names.h).
  const char* kernel = nullptr;
  // The dtypes of the first tensor that `kernel` refuses.
  DtypeSet refused;
  // Returns whether a call with these arguments reaches `kernel`; null: every call does.
  bool (*reaches_kernel)(Arguments) = nullptr;
  // The dtypes that `kernel` refuses for the result of promoting the first two arguments.
  DtypeSet refused_promoted;
  // Checks of dtypes, sizes and the rest, for Meta kernels, which do not check them.
  std::vector<DtypeRule> dtype_rules = {};
  void (*check_arguments)(Arguments) = nullptr;
  // Limits of CUDA's libraries: raises RuntimeError with CUDA's text if the library cannot compute
  // a call with these arguments on `device`.
  void (*check_limits)(Arguments arguments, c10::Device device) = nullptr;
  // The name in CUDA's error when a program that asks for deterministic algorithms calls a kernel
  // that adds in an order that differs from run to run; null if CUDA has a deterministic kernel.
  const char* nondeterministic = nullptr;
  // Returns whether a call with these arguments is nondeterministic; null: every call is.
  bool (*is_nondeterministic)(Arguments) = nullptr;
  // none: what the operator's entry in native_functions.yaml says.
  std::optional<DeviceCheck> device_check = {};

  // How the CPU computes it.

  std::vector<HostKernel> host_kernels = {};
  // Whether PyTorch's CPU kernel computes known values in place of these.
  bool cpu_kernel_agrees = false;
  // The overload, such as "" or "values", that needs a kernel although PyTorch composes it: CUDA
  // makes one library call of it, or its parts choose their kernels by device without the
  // dispatcher.
  const char* composed_overload = nullptr;
  // The dtypes that CUDA's kernel accepts and the CPU's does not (widening.h), and these dtypes for
  // sparse tensors where they are others.
  DtypeSet widened;
  DtypeSet widened_coordinates;
  DtypeSet widened_compressed;
  NestedKernel nested = NestedKernel::OfHost;
  // How many random numbers each thread of CUDA's kernel reserves, where the CPU draws others.
  uint64_t reserved_numbers = 4;

  // Whether CUDA_tensor_apply2 launches the kernel: it refuses tensors of the CPU in its own words.
  bool draws_by_apply2 = false;
  // Whether the CPU kernel for containers works on virtual tensors: copies between two devices,
  // whose steps are dispatched again, and the sizes of nested tensors, which stay on the CPU.
  bool takes_any_device = false;
  // Returns whether a call divides its first two arguments with an integer result for integers.
  bool (*divides_integers)(Arguments) = nullptr;
  // The index of the argument whose zero-dimensional value moves to the device of the tensor that
  // it is written to; 0 if no value moves.
  size_t moved_value = 0;

  // The results of CUDA. Apply to overloads without `out`.

  // Returns the layout for a call's arguments, where the CPU or Meta kernel chooses another.
  ChooseLayout choose_layout = nullptr;
  // The results of an operator without a Meta kernel.
  std::optional<MissingMeta> missing_meta = {};

  // What CUDA keeps: a workspace of cuBLAS.
  bool uses_cublas = false;
  // Whether the first operand may be a bias, which cuBLASLt adds.
  bool adds_bias = false;
};

// Operators that share a record, by their names without "aten::": of all overloads ("native_norm"),
// or of one overload, whose record then takes the place of the operator's ("native_norm.no_stats").
// Operators of other libraries keep their namespace ("torchvision::nms").
struct NamedRecord {
  std::vector<std::string> names;
  OperatorRecord record;
};
using OperatorRecords = std::vector<NamedRecord>;

// Adds its records to the table when it is constructed: declare one as a constant of a file.
class DeclaredRecords {
 public:
  explicit DeclaredRecords(OperatorRecords records);
};

// Adds records to the table. Raises RuntimeError if an operator has a record already. Call before
// the first plan is made.
void add_records(OperatorRecords records);

// Returns the record of an operator, which lives as long as the process; an empty one if it has
// none. `name` has no "aten::". Raises RuntimeError if two declared records name the same operator.
const OperatorRecord& record_of(const std::string& name, const std::string& overload);

} // namespace anyrig::virtual_gpu
