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

// PyTorch's quantised operators have kernels for the CPU; on a card, the packed embeddings alone.
bool is_quantized_for_host(const std::string& name) {
  return name.rfind("quantized::", 0) == 0 && name.rfind("quantized::embedding_bag_", 0) != 0;
}

// Where operands on several devices are refused: by the operator as its library wrote it, or here.
enum class Devices { CheckedByLibrary, CheckedHere };

// How many operators were taken out of the dispatcher so far. The address of a schema names it only
// as long as this stays the same: the next schema may be made in its place.
std::atomic<uint64_t> removed_operators{0};

class CountsRemovals final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& /*op*/) override {
    ++removed_operators;
  }
};

// The plans that one thread has made, by the address of the schema.
class PlansOfThread {
 public:
  // The caller keeps the plan: an operator that runs may define others, which drops it here.
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
      "Could not run '", op.operator_name(), "' with arguments from the 'CUDA' backend. This "
      "operator has no kernel for CUDA, or none that virtual GPUs can run on the CPU.");
  static thread_local PlansOfThread plans;
  const auto plan = plans.of(schema, devices);
  run_on_twins(*plan, op, c10::DispatchKey::CPU, stack);
}

std::mutex names_lock;

std::unordered_set<c10::OperatorName>& noted_names() {
  static auto* names = new std::unordered_set<c10::OperatorName>();
  return *names;
}

template <Devices devices>
void run_on_host(const c10::OperatorName& name) {
  const size_t colons = name.name.find("::");
  const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
  // Libraries deregister their kernels when they go; these stay until the process ends.
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
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<CountsRemovals>()));
  (void)counting; // until the process ends
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
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
    run_on_host<Devices::CheckedHere>(name);
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
      run_on_host<Devices::CheckedByLibrary>(name);
    }
  }
}

} // namespace anyrig::virtual_gpu
