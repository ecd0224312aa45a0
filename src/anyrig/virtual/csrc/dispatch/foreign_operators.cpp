#include "dispatch/foreign_operators.h"

#include "dispatch/call.h"
#include "dispatch/no_warnings.h"

#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

// Most of PyTorch's quantized operators exist on the CPU only; CUDA has packed embeddings.
bool is_quantized_for_host(const std::string& name) {
  return name.rfind("quantized::", 0) == 0 && name.rfind("quantized::embedding_bag_", 0) != 0;
}

// Who checks that operands share a device: the library's operator itself, or the boxed kernel.
enum class Devices { CheckedByLibrary, CheckedHere };

// The number of operators deregistered so far. Plans are cached by schema address, and after a
// deregistration a new schema may reuse an address.
std::atomic<uint64_t> removed_operators{0};

class RemovalCounter final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override { ++removed_operators; }
};

// The plans made by one thread, by schema address.
class PlanCache {
 public:
  // Returns a shared pointer because the operator may deregister others while it runs, which clears
  // this cache.
  std::shared_ptr<const OperatorPlan> of(const c10::FunctionSchema& schema, Devices devices) {
    if (const uint64_t removed = removed_operators; removed != removed_) {
      plans_.clear();
      removed_ = removed;
    }
    auto& plan = plans_[&schema];
    if (plan == nullptr) {
      auto made = std::make_shared<OperatorPlan>(schema, OperatorFacts());
      if (devices == Devices::CheckedByLibrary) {
        made->check = DeviceCheck::Nothing;
      }
      plan = std::move(made);
    }
    return plan;
  }

 private:
  std::unordered_map<const c10::FunctionSchema*, std::shared_ptr<const OperatorPlan>> plans_;
  uint64_t removed_ = 0;
};

template <Devices devices>
void run_foreign(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK_NOT_IMPLEMENTED(
      schema.name().rfind("aten::", 0) != 0 && !is_quantized_for_host(schema.name()),
      "Could not run '", op.operator_name(),
      "' with arguments from the 'CUDA' backend. This "
      "operator has no kernel for CUDA, or none that virtual GPUs can run on the CPU.");
  static thread_local PlanCache plans;
  const auto plan = plans.of(schema, devices);
  run_on_twins(*plan, op, c10::DispatchKey::CPU, stack);
}

std::mutex names_lock;

std::unordered_set<c10::OperatorName>& noted_names() {
  static auto* names = new std::unordered_set<c10::OperatorName>();
  return *names;
}

template <Devices devices>
void register_host_kernel(const c10::OperatorName& name) {
  const size_t colons = name.name.find("::");
  const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
  // A torch::Library deregisters its kernels when destroyed; these must stay until the process
  // ends.
  auto* library = new torch::Library(
      torch::Library::IMPL, name.name.substr(0, colons), c10::DispatchKey::CUDA, __FILE__,
      __LINE__);
  library->impl(
      (name.name.substr(colons + 2) + overload).c_str(),
      torch::CppFunction::makeFromBoxedFunction<&run_foreign<devices>>());
}

} // namespace

void install_foreign_operators() {
  static const auto* counting = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RemovalCounter>()));
  (void)counting; // until the process ends
  static auto* fallback =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  fallback->fallback(
      torch::CppFunction::makeFromBoxedFunction<&run_foreign<Devices::CheckedHere>>());
}

void note_operators() {
  const std::lock_guard<std::mutex> guard(names_lock);
  const auto names = c10::Dispatcher::singleton().getAllOpNames();
  noted_names().insert(names.begin(), names.end());
}

void take_over_operators() {
  const std::lock_guard<std::mutex> guard(names_lock);
  WithoutWarnings without_warnings;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (noted_names().count(name) > 0 || !op.has_value() || !op->hasSchema() ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
      continue;
    }
    register_host_kernel<Devices::CheckedHere>(name);
  }
}

void run_library_on_host(const std::string& library) {
  const std::lock_guard<std::mutex> guard(names_lock);
  WithoutWarnings without_warnings;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind(library + "::", 0) == 0 && op.has_value() && op->hasSchema() &&
        (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))) {
      register_host_kernel<Devices::CheckedByLibrary>(name);
    }
  }
}

} // namespace anyrig::virtual_gpu
