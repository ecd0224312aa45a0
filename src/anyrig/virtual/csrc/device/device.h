// The devices of the virtual rig: their properties, which of them the program sees, the current
// device, and CUDA's errors about them.
#pragma once

#include "time/gpu_facts.h"

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::CUDA;
inline constexpr int kMaxDevices = 64;

// What a process takes of a GPU outside the caching allocator; nothing of a plain GPU.
struct DriverMemory {
  int64_t context_bytes = 0;
  int64_t cublas_handle_bytes = 0; // one for each thread with products
  int64_t connection_bytes = 0; // of NCCL, for one channel to one other rank
  int ring_channels = 0;
  int message_channels = 0;
};

struct DeviceFacts {
  std::string name;
  std::string uuid;
  int64_t memory_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  int node = 0;     // the node that holds the device
  int position = 0; // index in the whole rig
  GpuFacts gpu;
  DriverMemory driver_memory;
};

// Compute stores data and computes on the CPU; ShapeOnly stores none and tracks shapes only.
enum class Mode { Compute, ShapeOnly };

struct Settings {
  Mode mode = Mode::Compute;
  // In ShapeOnly, assume the value one where an operator needs a value, instead of raising an
  // error.
  bool assume_values = false;
};

// Sets the devices of all nodes, of which this process uses those of `node`.
void set_rig(std::vector<DeviceFacts> rig, int node, Settings settings);
const std::vector<DeviceFacts>& whole_rig();
const Settings& settings();
inline bool shape_only() {
  return settings().mode == Mode::ShapeOnly;
}

// Returns the positions in the node that `visible` selects, in its order. `visible` is the text of
// CUDA_VISIBLE_DEVICES, or null: indices or unique UUID prefixes. An entry that names no device
// ends the list.
std::vector<int> visible_positions(const char* visible);

// Returns the devices that the program sees. The first call reads CUDA_VISIBLE_DEVICES; as with
// CUDA, later changes of the variable have no effect.
const std::vector<DeviceFacts>& devices();
int device_count() noexcept;

int current_device() noexcept;
void set_current_device(int index);

// Raises torch.AcceleratorError, "invalid device ordinal", unless 0 <= index < device_count().
void check_device_index(int64_t index);

// Returns `device` with its index, or the current device if it has none.
c10::Device resolve_device(std::optional<c10::Device> device);

// Marks that the process has a CUDA context on a device, which CUDA creates at the first use.
void open_context(int index) noexcept;
bool has_context(int index);
int count_contexts() noexcept;

// Makes `index` the current device for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) : previous_(current_device()) { set_current_device(index); }
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_;
};

// CUDA cannot be used in a child process forked after its parent used CUDA. `watch_forks` is called
// at the first use and makes such children call `in_child`; `check_not_forked` raises
// "initialization error" in them.
void watch_forks(void (*in_child)());
bool forked_after_use() noexcept;
void check_not_forked();

} // namespace anyrig::virtual_gpu
