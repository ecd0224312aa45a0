#include "temporaries/cublas_workspace.h"

#include "device/backward_threads.h"
#include "device/override.h"
#include "memory/gpu_memory.h"
#include "memory/memory.h"
#include "time/streams.h"

#include <c10/util/env.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

// aten/src/ATen/cuda/CublasHandlePool.cpp, getChosenWorkspaceSize.
constexpr size_t kHopperBytes = 4096 * 8 * 1024;
constexpr size_t kOtherBytes = (2 * 4096 + 8 * 16) * 1024;

std::string digits_from(const std::string& text, size_t start) {
  return text.substr(start, text.find_first_not_of("0123456789", start) - start);
}

// Returns the size that CUBLAS_WORKSPACE_CONFIG gives: any number of ":[KiB]:[count]" pairs.
// Returns none if the variable is not set or has no such pair.
std::optional<size_t> configured_bytes() {
  const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (text == nullptr) {
    return std::nullopt;
  }
  const std::string config(text);
  std::optional<size_t> bytes;
  // Not std::regex, which takes several seconds to compile.
  for (size_t colon = config.find(':'); colon != std::string::npos;) {
    const std::string kib = digits_from(config, colon + 1);
    const size_t next = config.find(':', colon + 1);
    if (kib.empty() || next != colon + 1 + kib.size()) {
      colon = next;
      continue;
    }
    const std::string count = digits_from(config, next + 1);
    if (!count.empty()) {
      bytes = bytes.value_or(0) + std::stoull(kib) * std::stoull(count) * 1024;
    }
    colon = config.find(':', next + count.size());
  }
  return bytes;
}

// The value of torch.backends.cuda.cublas_workspace_size; negative if not set.
std::atomic<int64_t> chosen_bytes{-1};
constexpr int64_t kNoWorkspace = -2;

size_t workspace_bytes(c10::DeviceIndex device) {
  const int64_t chosen = chosen_bytes.load(std::memory_order_relaxed);
  if (chosen >= 0) {
    return static_cast<size_t>(chosen);
  }
  if (const auto configured = configured_bytes()) {
    return *configured;
  }
  const int major = devices()[device].capability_major;
  return major == 9 || major == 10 || major == 12 ? kHopperBytes : kOtherBytes;
}

// From 2.15 on a workspace lasts for one call unless this variable keeps it
// (CUDABlasHandleWithWorkspace, in the same file).
bool keeps_workspaces() {
#if ANYRIG_TORCH_FROM(15)
  static const bool kept = c10::utils::check_env("TORCH_CUBLAS_WORKSPACE_CACHE") == true;
  return kept;
#else
  return true;
#endif
}

// PyTorch 2.11 keeps a workspace for cuBLASLt in addition, as an H100 showed; whether earlier
// versions do was not measured. From 2.15 on cuBLASLt uses the kept workspace of cuBLAS if there is
// one (unified_cublas_and_lt_workspaces), and otherwise a workspace of its own for each call.
constexpr size_t kLightBytes = 1024 * 1024;
constexpr bool kKeepsLight = ANYRIG_TORCH_FROM(11) && !ANYRIG_TORCH_FROM(15);

struct Workspace {
  c10::DataPtr memory;
  c10::DataPtr light; // of cuBLASLt
  bool has_light = false;
  size_t bytes = 0;
  int64_t chosen = kNoWorkspace; // `chosen_bytes` when it was made
};

// Takes what cuBLAS takes for a handle outside the caching allocator, until the process ends.
void reserve_handle(c10::DeviceIndex device) {
  const int64_t bytes = devices()[device].driver_memory.cublas_handle_bytes;
  if (bytes == 0) {
    return;
  }
  auto memory = GpuMemory::try_reserve(device, static_cast<size_t>(bytes), GpuUse::Context);
  TORCH_CHECK(
      memory.has_value(),
      "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
  new GpuMemory(std::move(*memory));
}

// The handles that a thread holds.
struct Handles {
  std::map<c10::DeviceIndex, int> by_device;
  // The workspace that it was provided with last, which is valid until all are freed.
  c10::DeviceIndex last_device = -1;
  c10::StreamId last_stream = 0;
  int64_t last_chosen = kNoWorkspace;
  uint64_t last_clearing = 0;
  bool last_is_light = false; // whether the last one has that of cuBLASLt
};

class Workspaces {
 public:
  void leave(const Handles& handles) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [device, handle] : handles.by_device) {
      idle_handles_[device].push_back(handle);
    }
  }

  void provide_handle(c10::DeviceIndex device, Handles& handles) {
    std::lock_guard<std::mutex> guard(mutex_);
    hold_handle(device, handles);
  }

  void provide(c10::DeviceIndex device, bool is_light, Handles& handles) {
    std::lock_guard<std::mutex> guard(mutex_);
    const c10::StreamId stream = current_stream(device).id();
    // As in PyTorch, the variable CUBLAS_WORKSPACE_CONFIG counts when a workspace is made.
    const int64_t chosen = chosen_bytes.load(std::memory_order_relaxed);
    if (C10_LIKELY(
            handles.last_device == device && handles.last_stream == stream &&
            handles.last_chosen == chosen && handles.last_clearing == clearings_ &&
            (handles.last_is_light || !is_light))) {
      return;
    }
    hold_handle(device, handles);
    Workspace& held = workspaces_[std::tuple(device, handles.by_device[device], stream)];
    if (held.chosen != chosen) {
      const size_t bytes = workspace_bytes(device);
      if (held.bytes != bytes) {
        held.memory = allocate_workspace(bytes, device);
        held.bytes = bytes;
      }
      held.chosen = chosen;
    }
    if (is_light && !held.has_light) {
      held.light = allocate_workspace(kLightBytes, device);
      held.has_light = true;
    }
    handles.last_is_light = held.has_light;
    handles.last_device = device;
    handles.last_stream = stream;
    handles.last_chosen = chosen;
    handles.last_clearing = clearings_;
  }

  void clear() {
    std::lock_guard<std::mutex> guard(mutex_);
    workspaces_.clear();
    ++clearings_;
  }

 private:
  void hold_handle(c10::DeviceIndex device, Handles& handles) {
    if (handles.by_device.count(device) == 0) {
      handles.by_device[device] = take_handle(device);
    }
  }

  int take_handle(c10::DeviceIndex device) {
    auto& idle = idle_handles_[device];
    if (idle.empty()) {
      reserve_handle(device);
      return next_handle_[device]++;
    }
    const int handle = idle.back();
    idle.pop_back();
    return handle;
  }

  std::mutex mutex_;
  uint64_t clearings_ = 0;
  std::map<c10::DeviceIndex, std::vector<int>> idle_handles_;
  std::map<c10::DeviceIndex, int> next_handle_;
  std::map<std::tuple<c10::DeviceIndex, int, c10::StreamId>, Workspace> workspaces_;
};

Workspaces& workspaces() {
  static auto* workspaces = new Workspaces(); // never freed: threads may end after static objects
  return *workspaces;
}

struct ThreadHandles {
  ~ThreadHandles() { workspaces().leave(handles); }

  Handles handles;
};

Handles& handles_of_caller() {
  static auto* of_backward_threads = new Handles(); // one entry for each device's backward thread
  static thread_local ThreadHandles of_thread;
  const bool in_backward = thread_with_gpus() == std::thread::id();
  return in_backward ? *of_backward_threads : of_thread.handles;
}

} // namespace

void provide_cublas_workspace(c10::DeviceIndex device, bool is_light) {
  if (Uncounted::is_active()) {
    return; // a CUDA graph allocates its workspace itself
  }
  if (!keeps_workspaces()) {
    workspaces().provide_handle(device, handles_of_caller());
    allocate_workspace(is_light ? kLightBytes : workspace_bytes(device), device); // freed at once
    return;
  }
  workspaces().provide(device, is_light && kKeepsLight, handles_of_caller());
}

size_t cublas_workspace_bytes() {
  return workspace_bytes(static_cast<c10::DeviceIndex>(current_device()));
}

void set_cublas_workspace_bytes(std::optional<int64_t> bytes) {
  TORCH_CHECK(bytes.value_or(0) >= 0, "workspace size must be non-negative, got ", *bytes);
  chosen_bytes = bytes.value_or(-1);
}

void clear_cublas_workspaces() {
  workspaces().clear();
}

} // namespace anyrig::virtual_gpu
