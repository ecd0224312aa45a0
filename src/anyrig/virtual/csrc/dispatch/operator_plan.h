// The plan of an operator: what the boxed kernel needs to know, computed once from the schema and
// from the entry in PyTorch's native_functions.yaml.
#pragma once

#include "dispatch/result_layout.h"
#include "dispatch/determinism.h"
#include "dispatch/operand_rules.h"
#include "dispatch/refusal.h"
#include "dispatch/widening.h"
#include "operators/library_limits.h"
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
  bool checks_devices = true; // false where the entry says `device_check: NoCheck`
  // The keys of containers (container.h) that the entry lists, such as "SparseCUDA".
  std::vector<std::string> container_keys;
};
using OperatorTable = std::unordered_map<std::string, OperatorFacts>;

// The check that CUDA applies to operands on several devices; each has its own messages.
enum class DeviceCheck {
  Wrapper,  // the generated wrapper: compares every tensor, including CPU scalars
  Iterator, // TensorIterator: allows CPU scalars
  Indices,  // the indexed tensor determines the device; its indices may be on the CPU
  Convolution, // compares the types, which name the device, then as Wrapper
  Foreach,  // no check: tensors of several devices are processed one by one
  Nothing,  // no check: sizes of nested tensors and sequence lengths live on the CPU
};

struct ArgumentPlan {
  bool is_written = false;
  bool is_read = true; // false: only written, or only its sizes matter
};

// Every call reads the plan, mostly with cold caches. The fields that every call needs therefore
// come first, next to each other.
struct OperatorPlan {
  explicit OperatorPlan(const c10::FunctionSchema& schema, const OperatorFacts& facts);

  DeviceCheck check = DeviceCheck::Wrapper;
  bool makes_tensors = false;
  // CUDA's kernels for lists of tensors bump the versions of the tensors they write to; for other
  // operators autograd does.
  bool raises_versions = false;
  bool divides_integers = false;
  // Each element of the results depends only on the elements at its position.
  bool is_pointwise = false;
  bool takes_optional_lists = false;
  WorkRules work;
  // CUDA computes the operator with cuBLAS, which needs a workspace.
  bool uses_cublas = false;
  const Refusal* refusal = nullptr;
  const OperandRules* rules = nullptr;
  CheckLimits check_limits = nullptr;
  const Nondeterminism* nondeterminism = nullptr;
  ChooseLayout choose_layout = nullptr;
  const MissingMeta* missing_meta = nullptr;
  // The dtypes for which the CPU kernel must run on a wider dtype.
  Dtypes widened;
  // The kernel to run on twins for an operator that PyTorch has no suitable CPU kernel for.
  std::optional<c10::KernelFunction> host_kernel;
  // For each return: the index of the argument that it aliases, or -1 for a new tensor.
  c10::SmallVector<int, 4> returned_argument;
  // One for each argument of the schema.
  c10::SmallVector<ArgumentPlan, 16> arguments;
  // Indices of the arguments that are generators.
  c10::SmallVector<int, 1> generators;
  // Indices of the arguments that are lists of optional tensors.
  c10::SmallVector<int, 1> optional_lists;

  // Indices of the arguments in the order in which CUDA's wrapper checks their devices.
  std::vector<int> check_order;
  // The name of CUDA's wrapper, which appears in its errors.
  std::string wrapper_name;
};

} // namespace anyrig::virtual_gpu
