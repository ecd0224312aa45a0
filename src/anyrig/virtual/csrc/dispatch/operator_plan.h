// What the boxed kernel has to know of an operator, worked out once from its schema and from what
// PyTorch's own table says of its CUDA kernel.
#pragma once

#include "dispatch/card_results.h"
#include "dispatch/determinism.h"
#include "dispatch/operand_rules.h"
#include "dispatch/refusal.h"
#include "dispatch/widening.h"
#include "operators/library_limits.h"
#include "time/work.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {

// One entry of native_functions.yaml, as the Python side reads it.
struct OperatorFacts {
  bool has_cuda_kernel = false;
  bool structured = false;
  bool checks_devices = true; // false where the table says `device_check: NoCheck`
  // Of containers (container.h): the keys that the table lists, as in "SparseCUDA".
  std::vector<std::string> container_keys;
};
using OperatorTable = std::unordered_map<std::string, OperatorFacts>;

// How CUDA's kernel refuses operands of several devices, each in its own words.
enum class DeviceCheck {
  Wrapper,  // the generated wrapper: every tensor, scalars of the CPU included
  Iterator, // TensorIterator: scalars of the CPU may take part
  Indices,  // the tensor indexed counts; its indices may be on the CPU
  Convolution, // the types first, which name the device, then as Wrapper
  Foreach,  // none: tensors of several devices are worked off one by one
  Nothing,  // none: sizes of nested tensors and lengths of sequences live on the CPU
};

struct ArgumentPlan {
  bool is_written = false;
  bool is_read = true; // where false: only written, or only its sizes count
};

// Every call reads it, mostly after a kernel that left nothing of it in the caches: what each call
// needs comes first, and in one piece.
struct OperatorPlan {
  explicit OperatorPlan(const c10::FunctionSchema& schema, const OperatorFacts& facts);

  DeviceCheck check = DeviceCheck::Wrapper;
  Formula formula = Formula::None;
  Traffic traffic = Traffic::All;
  bool makes_tensors = false;
  // CUDA's kernels for lists of tensors raise the versions of those they write to; for other
  // operators, autograd does.
  bool raises_versions = false;
  bool divides_integers = false;
  // Each element of the results comes of those at its place.
  bool is_pointwise = false;
  bool takes_optional_lists = false;
  // The card computes it with cuBLAS, which takes a workspace.
  bool uses_cublas = false;
  const Refusal* refusal = nullptr;
  const OperandRules* rules = nullptr;
  CheckLimits check_limits = nullptr;
  const Unordered* unordered = nullptr;
  ResultsOnCard results_on_card = nullptr;
  const WithoutMeta* without_meta = nullptr;
  // Dtypes that need more than the CPU's kernel.
  Dtypes widened;
  // Runs on twins in place of PyTorch's own kernel, which there is none of for the CPU.
  std::optional<c10::KernelFunction> host_kernel;
  // Per return: the argument it is, or -1 for a new tensor.
  c10::SmallVector<int, 4> returned_argument;
  // Per argument of the schema.
  c10::SmallVector<ArgumentPlan, 16> arguments;
  // The arguments that are generators.
  c10::SmallVector<int, 1> generators;
  // The arguments that are lists of optional tensors.
  c10::SmallVector<int, 1> optional_lists;

  // The arguments in the order in which CUDA's wrapper checks their devices.
  std::vector<int> check_order;
  // CUDA's name of the wrapper, which its error gives.
  std::string wrapper_name;
};

} // namespace anyrig::virtual_gpu
