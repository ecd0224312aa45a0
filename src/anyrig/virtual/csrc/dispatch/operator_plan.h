// The plan of one overload of an operator: what the boxed kernel needs to know, computed once from
// the schema, from the entry in PyTorch's native_functions.yaml and from the operator's record.
#pragma once

#include "dispatch/operator_record.h"
#include "temporaries/temporaries.h"
#include "time/records/operator_work.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {

// One entry of native_functions.yaml, as parsed in Python.
struct OperatorFacts {
  bool has_cuda_kernel = false;
  bool structured = false;
  bool is_iterator = false; // structured by TensorIterator
  bool checks_devices = true; // false where the entry says `device_check: NoCheck`
  // The keys of containers (container.h) that the entry lists, such as "SparseCUDA".
  std::vector<std::string> container_keys;
};
using OperatorTable = std::unordered_map<std::string, OperatorFacts>;

// What a call does to the values that ShapeOnly knows (known_call.h).
enum class ValueRule {
  Forget,  // those of the tensors that it writes to are unknown afterwards
  Draw,    // likewise, as random numbers
  Compute, // computes them if those of its arguments are known
  Keep,    // it changes sizes and strides only
};

struct ArgumentPlan {
  bool is_written = false;
  bool is_read = true; // false: only written, or only its sizes matter
  bool is_undeclared = false; // written, though the schema does not say so: a running statistic
};

// Every call reads the plan, mostly with cold caches. The fields that every call needs therefore
// come first, next to each other.
struct OperatorPlan {
  // Raises RuntimeError if records are declared twice. `host_key` is the key of the CPU kernel that
  // the operator runs: CPU, or that of a container (container.h).
  OperatorPlan(
      const c10::FunctionSchema& schema,
      const OperatorFacts& facts,
      c10::DispatchKey host_key = c10::DispatchKey::CPU);

  std::string name; // with "aten::"
  DeviceCheck check = DeviceCheck::Wrapper;
  bool makes_tensors = false;
  bool writes = false; // to any argument
  // CUDA's kernels for lists of tensors bump the versions of the tensors they write to; for other
  // operators autograd does.
  bool raises_versions = false;
  bool checks_repeats = false; // repeat_interleave, on the host if it must compute its size
  // Each element of the results depends only on the elements at its position.
  bool is_pointwise = false;
  ValueRule value_rule = ValueRule::Forget;
  bool takes_optional_lists = false;
  WorkRules work;
  bool uses_cublas = false;
  // Which checks of the record (operand_checks.h) a call needs.
  bool checks_operands = false;
  bool checks_determinism = false;
  bool has_missing_meta = false;
  TemporariesOf temporaries = nullptr;
  // A copy of the record's, so that a call need not read the record.
  DtypeSet refused;
  // The dtypes for which the CPU kernel must run on a wider dtype.
  DtypeSet widened;
  decltype(OperatorRecord::check_limits) check_limits = nullptr;
  decltype(OperatorRecord::divides_integers) divides_integers = nullptr;
  ChooseLayout choose_layout = nullptr;
  const OperatorRecord* record; // never null
  // The kernel to run on twins in place of PyTorch's CPU kernel.
  std::optional<c10::KernelFunction> host_kernel;
  bool computes_known_values = true; // by PyTorch's CPU kernel
  // For each return: the index of the argument that it aliases, or -1 for a new tensor.
  c10::SmallVector<int, 4> returned_argument;
  // One for each argument of the schema.
  c10::SmallVector<ArgumentPlan, 16> arguments;
  // Indices of the arguments that may be tensors, lists of tensors, or devices.
  c10::SmallVector<int, 8> operand_places;
  // Indices of the arguments that are generators.
  c10::SmallVector<int, 1> generators;
  // Indices of the arguments that are lists of optional tensors.
  c10::SmallVector<int, 1> optional_lists;

  // Indices of the arguments in the order in which CUDA's wrapper checks their devices.
  std::vector<int> check_order;
  // The name of CUDA's wrapper, which appears in its errors.
  std::string wrapper_name;
};

// Returns the operator's name in the table of records: PyTorch's have no namespace.
std::string recorded_name(const c10::FunctionSchema& schema);

} // namespace anyrig::virtual_gpu
