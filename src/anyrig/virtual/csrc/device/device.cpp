#include "device/device.h"

#include "device/cuda_error.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

namespace anyrig::virtual_gpu {
namespace {

// Threads that use this state may outlive static destruction, so it is never freed.
struct RigState {
  std::vector<DeviceFacts> whole;
  std::vector<DeviceFacts> rig; // the devices of this process's node
  Settings settings;
  std::once_flag latched;
  std::vector<DeviceFacts> visible;
};

RigState& state() {
  static auto* state = new RigState();
  return *state;
}

// Plain globals, since every operator reads them.
Settings current_settings;
std::atomic<int> visible_count{-1}; // -1: unknown

thread_local int current_index = 0;
std::atomic<bool> in_forked_child{false};
std::array<std::atomic<bool>, kMaxDevices> contexts{};

std::string trim(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) {
    return "";
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Returns the position that an entry of CUDA_VISIBLE_DEVICES names, or -1.
int position_of(const std::string& entry, const std::vector<DeviceFacts>& rig) {
  if (entry.empty()) {
    return -1;
  }
  if (entry.find_first_not_of("0123456789") == std::string::npos) {
    const long index = std::strtol(entry.c_str(), nullptr, 10);
    return index < static_cast<long>(rig.size()) ? static_cast<int>(index) : -1;
  }
  int found = -1;
  for (size_t i = 0; i < rig.size(); ++i) {
    if (rig[i].uuid.compare(0, entry.size(), entry) == 0) {
      if (found >= 0) {
        return -1; // an ambiguous prefix names no device
      }
      found = static_cast<int>(i);
    }
  }
  return found;
}

} // namespace

void set_rig(std::vector<DeviceFacts> rig, int node, Settings settings) {
  std::vector<DeviceFacts> of_node;
  for (const auto& facts : rig) {
    if (facts.node == node) {
      of_node.push_back(facts);
    }
  }
  TORCH_CHECK(
      static_cast<int>(of_node.size()) <= kMaxDevices, "a node of a virtual rig has at most ",
      kMaxDevices, " devices, not ", of_node.size());
  state().whole = std::move(rig);
  state().rig = std::move(of_node);
  current_settings = settings;
}

const std::vector<DeviceFacts>& whole_rig() {
  return state().whole;
}

const Settings& settings() {
  return current_settings;
}

std::vector<int> visible_positions(const char* visible) {
  const auto& rig = state().rig;
  std::vector<int> positions;
  if (visible == nullptr) {
    for (size_t i = 0; i < rig.size(); ++i) {
      positions.push_back(static_cast<int>(i));
    }
    return positions;
  }
  const std::string text(visible);
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const int position = position_of(trim(text.substr(start, end - start)), rig);
    if (position < 0) {
      break;
    }
    if (std::find(positions.begin(), positions.end(), position) != positions.end()) {
      return {}; // CUDA sees no device if an entry repeats
    }
    positions.push_back(position);
    start = end + 1;
  }
  return positions;
}

const std::vector<DeviceFacts>& devices() {
  auto& rig = state();
  if (C10_LIKELY(visible_count.load(std::memory_order_acquire) >= 0)) {
    return rig.visible; // std::call_once calls a function of the C library, even the second time
  }
  std::call_once(rig.latched, [&rig] {
    for (const int position : visible_positions(std::getenv("CUDA_VISIBLE_DEVICES"))) {
      rig.visible.push_back(rig.rig[position]);
    }
    visible_count = static_cast<int>(rig.visible.size());
  });
  return rig.visible;
}

int device_count() noexcept {
  const int count = visible_count.load(std::memory_order_acquire);
  return count >= 0 ? count : static_cast<int>(devices().size());
}

int current_device() noexcept {
  return current_index;
}

void set_current_device(int index) {
  check_device_index(index);
  current_index = index;
}

void open_context(int index) noexcept {
  contexts[index].store(true, std::memory_order_relaxed);
}

bool has_context(int index) {
  check_device_index(index);
  return contexts[index].load(std::memory_order_relaxed);
}

int count_contexts() noexcept {
  return static_cast<int>(std::count(contexts.begin(), contexts.end(), true));
}

CurrentDevice::~CurrentDevice() {
  current_index = previous_;
}

void check_device_index(int64_t index) {
  if (C10_UNLIKELY(index < 0 || index >= device_count())) {
    raise_cuda_error(CudaError::InvalidDevice);
  }
}

c10::Device resolve_device(std::optional<c10::Device> device) {
  if (!device.has_value() || !device->has_index()) {
    return {kDeviceType, static_cast<c10::DeviceIndex>(current_index)};
  }
  return *device;
}

void watch_forks(void (*in_child)()) {
  static std::once_flag once;
  static void (*tell)() = nullptr;
  std::call_once(once, [in_child] {
    tell = in_child;
    pthread_atfork(nullptr, nullptr, [] {
      in_forked_child = true;
      tell();
    });
  });
}

bool forked_after_use() noexcept {
  return in_forked_child.load(std::memory_order_relaxed);
}

void check_not_forked() {
  if (C10_UNLIKELY(forked_after_use())) {
    raise_cuda_error(CudaError::Initialization);
  }
}

} // namespace anyrig::virtual_gpu
