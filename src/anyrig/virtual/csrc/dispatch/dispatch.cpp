#include "dispatch/dispatch.h"

#include "device/device.h"
#include "dispatch/call.h"
#include "dispatch/container.h"
#include "dispatch/foreign_operators.h"
#include "dispatch/known_call.h"
#include "dispatch/no_warnings.h"
#include "operators/kernels.h"

#include <torch/library.h>

#include <algorithm>
#include <memory>

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
      false, op.operator_name(),
      " is not modelled on a virtual GPU: PyTorch has a CUDA "
      "kernel for it, but no CPU kernel to run in its place.");
}

bool has_host_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

NestedKernel nested_kernel_of(const OperatorRecord& record) {
  switch (record.nested) {
    case NestedKernel::OnTwins:
      return shape_only() ? NestedKernel::OfHost : NestedKernel::OnTwins;
    case NestedKernel::OnTwinsOrWrittenHere:
      return shape_only() ? NestedKernel::WrittenHere : NestedKernel::OnTwins;
    default:
      return record.nested;
  }
}

// Runs the kernel of the host key directly on virtual tensors.
class DirectKernel final : public c10::OperatorKernel {
 public:
  explicit DirectKernel(c10::DispatchKey host_key) : host_key_(host_key) {}

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
      OperatorPlan plan(op->schema(), facts, keys.host);
      if (!plan.host_kernel.has_value() && !op->hasKernelForDispatchKey(keys.host)) {
        continue;
      }
      const auto nested_kernel = keys.host == c10::DispatchKey::NestedTensorCPU
          ? nested_kernel_of(*plan.record)
          : NestedKernel::OnTwins;
      if (nested_kernel == NestedKernel::WrittenHere) {
        continue;
      }
      if (nested_kernel == NestedKernel::OfHost || plan.record->takes_any_device) {
        library->impl(
            name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DirectKernel>(keys.host)));
        continue;
      }
      plan.wrapper_name.replace(plan.wrapper_name.find("CUDA"), 4, keys.name);
      library->impl(name.c_str(), boxed_kernel(std::move(plan), keys.host));
    }
  }
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
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
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
    const char* composed =
        record_of(recorded_name(op->schema()), name.overload_name).composed_overload;
    const bool needs_kernel =
        has_cuda_kernel || (composed != nullptr && composed == name.overload_name);
    if (registered.count(full_name) > 0 || !needs_kernel) {
      continue;
    }
    OperatorPlan plan(op->schema(), facts == table.end() ? OperatorFacts() : facts->second);
    if (!has_host_kernel(*op) && !plan.host_kernel.has_value()) {
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
          !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
        continue; // PyTorch composes it of other operators
      }
      // In a PyTorch built for CUDA, keep the CUDA kernel from accessing host memory.
      library->impl(
          full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_unmodelled>());
      continue;
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
