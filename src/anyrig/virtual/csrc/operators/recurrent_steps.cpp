#include "operators/recurrent_steps.h"

#include "dispatch/no_warnings.h"
#include "dispatch/twin.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <optional>

namespace anyrig::virtual_gpu {
namespace {

// Locked while a GPU's seed replaces the host's random state: of two concurrent threads, such as
// DataParallel's, each could otherwise restore the other's seed.
std::mutex& seeding() {
  static auto* mutex = new std::mutex(); // never freed: threads may end after static objects
  return *mutex;
}

// While an instance is alive, the host's generator draws from a seed of the GPU's, so that dropout
// leaves the program's numbers on the host alone.
class SeededHost {
 public:
  explicit SeededHost(c10::DeviceIndex device) : lock_(seeding()) {
    auto gpu = at::globalContext().defaultGenerator(c10::Device(kDeviceType, device));
    auto host = at::detail::getDefaultCPUGenerator();
    uint64_t seed = 0;
    {
      const std::lock_guard<std::mutex> guard(gpu.mutex());
      const uint64_t offset = gpu.get_offset();
      seed = gpu.current_seed() + offset;
      gpu.set_offset(offset + 4);
    }
    const std::lock_guard<std::mutex> guard(host.mutex());
    before_ = host.get_state();
    host.set_current_seed(seed);
  }
  ~SeededHost() {
    auto host = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> guard(host.mutex());
    host.set_state(before_);
  }
  SeededHost(const SeededHost&) = delete;
  SeededHost& operator=(const SeededHost&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  at::Tensor before_;
};

} // namespace

HostSteps run_host_steps(
    const c10::OperatorHandle& op,
    const LayerArguments& arguments,
    const std::vector<at::Tensor>& tensors,
    at::ScalarType dtype,
    bool differentiates) {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const bool has_values = !shape_only();
  const at::AutoGradMode mode(differentiates && has_values);
  HostSteps steps;
  std::vector<at::Tensor> operands;
  for (const auto& tensor : tensors) {
    at::Tensor leaf = twin_of(tensor).detach();
    if (has_values) {
      leaf = leaf.clone().set_requires_grad(differentiates && tensor.requires_grad());
    }
    steps.leaves.push_back(leaf);
    operands.push_back(leaf.to(dtype));
  }
  std::optional<SeededHost> seeded;
  if (has_values && arguments.drops_out()) {
    seeded.emplace(arguments.input().device().index());
  }
  // Hide the program's hooks: they are meant only for the tensors that the operator itself saves.
  const auto hooks = at::SavedTensorDefaultHooks::get_tls_state();
  at::SavedTensorDefaultHooks::set_tls_state({});
  auto stack = arguments.with_tensors(operands);
  const WithoutWarnings without_warnings; // of the host's kernels, such as those of oneDNN
  try {
    op.callBoxed(stack);
  } catch (...) {
    at::SavedTensorDefaultHooks::set_tls_state(hooks);
    throw;
  }
  at::SavedTensorDefaultHooks::set_tls_state(hooks);
  for (const auto& result : stack) {
    steps.results.push_back(result.toTensor());
  }
  return steps;
}

} // namespace anyrig::virtual_gpu
