#include "device/backward_threads.h"

#include "device/device.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

using torch::autograd::Node;

// Gives access to the engine's threads and queues, which it sets up once.
struct OpenEngine final : torch::autograd::Engine {
  static void renew_queue(torch::autograd::Engine& engine) {
    constexpr auto renew = &OpenEngine::init_local_ready_queue;
    (engine.*renew)(std::make_shared<torch::autograd::ReadyQueue>());
  }

  static void start_threads(torch::autograd::Engine& engine, size_t devices) {
    constexpr auto pool = &OpenEngine::thread_pool_shared_;
    constexpr auto queues = &OpenEngine::device_ready_queues_;
    constexpr auto start = &OpenEngine::start_device_threads;
    const bool has_started = engine.*pool != nullptr;
    if (has_started && (engine.*queues).size() < devices) {
      (engine.*queues).clear();
      (engine.*pool).reset(); // the engine checks this to see whether it has started
      (engine.*start)();
    }
  }
};

bool is_in_backward() {
  constexpr int kNoBackward = -1;
  return torch::autograd::get_current_graph_task_id() != kNoBackward;
}

// PyTorch does not export the type, so recognise its mangled name.
bool is_python_function(const Node& node) {
  return std::strcmp(typeid(node).name(), "N5torch8autograd6PyNodeE") == 0;
}

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
      !node.tensor_pre_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

// Returns whether a backward from `roots` runs code of the program.
bool runs_program_code(const torch::autograd::edge_list& roots) {
  std::vector<Node*> nodes;
  ska::flat_hash_set<const Node*> seen;
  const auto visit = [&](const torch::autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second) {
      nodes.push_back(edge.function.get());
    }
  };
  std::for_each(roots.begin(), roots.end(), visit);
  while (!nodes.empty()) {
    Node& node = *nodes.back();
    nodes.pop_back();
    if (is_python_function(node) || has_hooks(node)) {
      return true;
    }
    std::for_each(node.next_edges().begin(), node.next_edges().end(), visit);
  }
  return false;
}

} // namespace

bool needs_backward_threads(const std::vector<at::Tensor>& roots) {
  if (count_contexts() > 1 || is_in_backward()) {
    return true;
  }
  torch::autograd::edge_list edges;
  for (const auto& root : roots) {
    edges.push_back(torch::autograd::impl::gradient_edge(root));
  }
  return runs_program_code(edges);
}

void drop_failed_backward() {
  OpenEngine::renew_queue(torch::autograd::Engine::get_default_engine());
}

void start_backward_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  OpenEngine::start_threads(engine, static_cast<size_t>(device_count()));
}

void settle_backward_threads() {
  if (forked_after_use()) {
    return; // a forked child has none of its parent's threads
  }
  // Keep Python objects out of the backward passes below.
  at::impl::ThreadLocalPythonObjects::set_state({});
  for (int i = 0; i < device_count(); ++i) {
    if (!has_context(i)) {
      continue; // no backward pass ran there, and a context would take memory from other processes
    }
    // A thread that processes the next backward has dropped the previous one. Empty tensors need no
    // device memory, which may be exhausted.
    const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(i));
    const auto leaf = at::empty({0}, at::TensorOptions(device)).requires_grad_();
    leaf.clone().backward(at::empty({0}, at::TensorOptions(device)));
  }
}

std::thread::id thread_with_gpus() noexcept {
  return is_in_backward() ? std::thread::id() : std::this_thread::get_id();
}

} // namespace anyrig::virtual_gpu
