#include "memory/block_origins.h"

#include "time/origin.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

std::atomic<bool> watches_origins{false};
thread_local bool is_optional = false;

// Replaced under the GIL, which a caller takes to call the hook.
std::shared_ptr<RefusalHook>& refusal_hook() {
  static auto* hook = new std::shared_ptr<RefusalHook>(); // used while the process ends
  return *hook;
}

std::vector<OutOfMemoryObserver>& observers() {
  static auto* all = new std::vector<OutOfMemoryObserver>();
  return *all;
}

// Returns how many backward passes have begun, not counting those during which it was never called.
int32_t count_backward_passes() {
  static std::atomic<bool> in_backward{false};
  static std::atomic<int32_t> begun{0};
  const bool is_inside = torch::autograd::get_current_graph_task_id() != -1;
  if (is_inside != in_backward.load(std::memory_order_relaxed) &&
      in_backward.exchange(is_inside) != is_inside && is_inside) {
    ++begun;
  }
  return begun.load(std::memory_order_relaxed);
}

} // namespace

void add_out_of_memory_observer(OutOfMemoryObserver observer) {
  observers().push_back(std::move(observer));
}

void watch_block_origins(RefusalHook hook) {
  const bool watches = static_cast<bool>(hook);
  std::atomic_store(
      &refusal_hook(), watches ? std::make_shared<RefusalHook>(std::move(hook)) : nullptr);
  watches_origins.store(watches, std::memory_order_relaxed);
}

void note_block_origin(Block& block, bool is_workspace) {
  block.is_workspace = is_workspace;
  // cuBLAS's workspaces are made under a lock, and no line of the program makes any workspace.
  const bool notes = !is_workspace && watches_origins.load(std::memory_order_relaxed);
  const Origin origin = C10_UNLIKELY(notes) ? find_origin() : Origin();
  block.line = origin.line;
  block.module = origin.module;
  block.backward_passes = notes ? count_backward_passes() : 0;
  block.in_grad_mode = at::GradMode::is_enabled();
}

void note_refusal(c10::DeviceIndex device, const OutOfMemory& error) {
  for (const auto& observer : observers()) {
    observer(device, error);
  }
  if (is_optional || !watches_origins.load(std::memory_order_relaxed)) {
    return;
  }
  if (const auto hook = std::atomic_load(&refusal_hook())) {
    (*hook)(device, error);
  }
}

OptionalRequest::OptionalRequest() : previous_(is_optional) {
  is_optional = true;
}

OptionalRequest::~OptionalRequest() {
  is_optional = previous_;
}

} // namespace anyrig::virtual_gpu
