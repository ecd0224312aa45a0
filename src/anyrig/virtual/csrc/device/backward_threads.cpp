#include "device/backward_threads.h"

#include "device/device.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace anyrig::virtual_gpu {
namespace {

// Opens what the engine knows of its threads, which it settles once and for all.
struct OpenEngine final : torch::autograd::Engine {
  static void start_threads(torch::autograd::Engine& engine, size_t devices) {
    constexpr auto pool = &OpenEngine::thread_pool_shared_;
    constexpr auto queues = &OpenEngine::device_ready_queues_;
    constexpr auto start = &OpenEngine::start_device_threads;
    const bool has_started = engine.*pool != nullptr;
    if (has_started && (engine.*queues).size() < devices) {
      (engine.*queues).clear();
      (engine.*pool).reset(); // which the engine takes for not having started
      (engine.*start)();
    }
  }
};

} // namespace

void start_backward_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  OpenEngine::start_threads(engine, static_cast<size_t>(device_count()));
}

void settle_backward_threads() {
  if (forked_after_use()) {
    return; // a child has none of its parent's threads
  }
  // The backwards below are to hold no Python object themselves.
  at::impl::ThreadLocalPythonObjects::set_state({});
  for (int i = 0; i < device_count(); ++i) {
    // A thread that takes up the next backward has dropped the one before. Without elements it
    // needs no memory, of which there may be none left.
    const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(i));
    const auto leaf = at::empty({0}, at::TensorOptions(device)).requires_grad_();
    leaf.clone().backward(at::empty({0}, at::TensorOptions(device)));
  }
}

std::thread::id thread_with_cards() noexcept {
  constexpr int kNoBackward = -1;
  const bool in_backward = torch::autograd::get_current_graph_task_id() != kNoBackward;
  return in_backward ? std::thread::id() : std::this_thread::get_id();
}

} // namespace anyrig::virtual_gpu
