#include "dispatch/dispatch.h"

#include "dispatch/call.h"
#include "dispatch/container.h"
#include "dispatch/foreign_operators.h"
#include "dispatch/known_call.h"
#include "dispatch/no_warnings.h"
#include "operators/cuda_only.h"
#include "operators/kernels.h"
#include "operators/nested_kernels.h"

#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

// The boxed kernel of one operator, with its plan.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  BoxedKernel(OperatorPlan plan, c10::DispatchKey host_key)
      : plan_(std::move(plan)), host_key_(host_key) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) {
    run_on_twins(plan_, op, host_key_, stack);
  }

 private:
  OperatorPlan plan_;
  c10::DispatchKey host_key_;
};

torch::CppFunction boxed_kernel(OperatorPlan plan, c10::DispatchKey host_key) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<BoxedKernel>(std::move(plan), host_key));
}

// Registered for operators with a CUDA kernel but neither a CPU kernel nor a kernel of this
// library.
void refuse_unmodelled(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), " is not modelled on a virtual GPU: PyTorch has a CUDA "
      "kernel for it, but no CPU kernel to run in its place.");
}

bool has_host_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Returns whether an operator's CPU kernel works on virtual tensors directly: copies between two
// devices, whose steps are dispatched again, and the sizes of nested tensors, which stay on the
// CPU.
bool takes_any_device(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "copy_", "copy_sparse_to_sparse_", "_to_copy",
      "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"};
  return names.count(name) > 0;
}

// Runs the kernel of the host key directly on virtual tensors.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(c10::DispatchKey host_key) : host_key_(host_key) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(host_key_), stack);
  }

 private:
  c10::DispatchKey host_key_;
};

// Registers the operators that CUDA has for sparse and nested tensors.
void install_container_operators(const OperatorTable& table) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& keys : container_keys()) {
    auto* library =
        new torch::Library(torch::Library::IMPL, "aten", keys.device, __FILE__, __LINE__);
    for (const auto& [name, facts] : table) {
      const auto& listed = facts.container_keys;
      const size_t dot = name.find('.');
      const auto op = dispatcher.findOp(
          {"aten::" + name.substr(0, dot),
           dot == std::string::npos ? std::string() : name.substr(dot + 1)});
      if (std::find(listed.begin(), listed.end(), keys.name) == listed.end() || !op.has_value()) {
        continue;
      }
      const auto& written_here = cuda_only_kernels_of(keys.device);
      const auto host_kernel = written_here.find(name);
      if (host_kernel == written_here.end() && !op->hasKernelForDispatchKey(keys.host)) {
        continue;
      }
      const auto nested_kernel = keys.host == c10::DispatchKey::NestedTensorCPU
          ? nested_kernel_of(name)
          : NestedKernel::OnTwins;
      if (nested_kernel == NestedKernel::WrittenHere) {
        continue;
      }
      if (nested_kernel == NestedKernel::OfHost || takes_any_device(name)) {
        library->impl(
            name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(keys.host)));
        continue;
      }
      OperatorPlan plan(op->schema(), facts);
      plan.wrapper_name.replace(plan.wrapper_name.find("CUDA"), 4, keys.name);
      plan.widened = dtypes_to_widen_in_containers(op->schema().name().substr(6), keys.host);
      if (host_kernel != written_here.end()) {
        plan.host_kernel = host_kernel->second;
      }
      library->impl(name.c_str(), boxed_kernel(std::move(plan), keys.host));
    }
  }
}

// Returns whether an operator needs a kernel of its own although PyTorch composes it: CUDA makes
// one library call of it, or its parts choose their kernels by device without the dispatcher.
bool needs_own_kernel(const std::string& full_name) {
  return full_name == "convolution" || full_name == "_convolution" ||
      full_name == "convolution_overrideable" || full_name == "mode.values";
}

// TorchScript's tracer skips `convolution` and records the `_convolution` that PyTorch's own kernel
// calls (torchgen's DONT_RECORD_TRACE). While tracing, run that kernel on the virtual tensors, so
// that the trace contains no twins.
class ConvolutionKernel final : public c10::OperatorKernel {
 public:
  explicit ConvolutionKernel(OperatorPlan plan) : plan_(std::move(plan)) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) {
    if (C10_UNLIKELY(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer))) {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
      return;
    }
    run_on_twins(plan_, op, c10::DispatchKey::CPU, stack);
  }

 private:
  OperatorPlan plan_;
};

} // namespace

int install_operators(const OperatorTable& table) {
  WithoutWarnings without_warnings; // a PyTorch built for CUDA has all of these kernels
  // A torch::Library deregisters its kernels when destroyed; these must stay until the process
  // ends.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  const auto registered = register_kernels(*library);
  int count = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op.has_value() || !op->hasSchema()) {
      continue;
    }
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    const std::string full_name = name.name.substr(6) + overload;
    const auto facts = table.find(full_name);
    const bool has_cuda_kernel = facts != table.end() && facts->second.has_cuda_kernel;
    if (registered.count(full_name) > 0 || !(has_cuda_kernel || needs_own_kernel(full_name))) {
      continue;
    }
    const auto host_kernel = cuda_only_kernels().find(full_name);
    const bool written_here = host_kernel != cuda_only_kernels().end();
    if (!has_host_kernel(*op) && !written_here) {
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
          !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
                continue; // PyTorch composes it of other operators
      }
      // In a PyTorch built for CUDA, keep the CUDA kernel from accessing host memory.
      library->impl(
          full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_unmodelled>());
      continue;
    }
    OperatorPlan plan(op->schema(), facts == table.end() ? OperatorFacts() : facts->second);
    if (written_here) {
      plan.host_kernel = host_kernel->second;
    }
    plan.is_pointwise = op->hasTag(at::Tag::pointwise);
    plan.value_rule = value_rule_of(*op);
    auto kernel = full_name == "convolution"
        ? torch::CppFunction::makeFromBoxedFunctor(
              std::make_unique<ConvolutionKernel>(std::move(plan)))
        : boxed_kernel(std::move(plan), c10::DispatchKey::CPU);
    library->impl(full_name.c_str(), std::move(kernel));
    ++count;
  }
  install_container_operators(table);
  install_foreign_operators();
  return count;
}

} // namespace anyrig::virtual_gpu
