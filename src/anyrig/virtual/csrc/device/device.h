// The devices of the virtual rig: their facts, which of them the program may see, which one is
// current, and the errors CUDA raises about them.
#pragma once

#include "time/rates.h"

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::CUDA;
inline constexpr int kMaxDevices = 64;

struct DeviceFacts {
  std::string name;
  std::string uuid;
  int64_t memory_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  int node = 0;     // the machine it is in
  int position = 0; // in the whole rig
  Rates rates;
};

// Compute holds data and calculates on the CPU; ShapeOnly holds none and knows shapes alone.
enum class Mode { Compute, ShapeOnly };

struct Settings {
  Mode mode = Mode::Compute;
  // In ShapeOnly, what needs a value is given the value one instead of an error.
  bool assume_values = false;
};

// `rig` holds the devices of all nodes, of which this process has those of `node`.
void set_rig(std::vector<DeviceFacts> rig, int node, Settings settings);
const std::vector<DeviceFacts>& whole_rig();
const Settings& settings();
inline bool shape_only() { return settings().mode == Mode::ShapeOnly; }

// Positions in the node that `visible` (the text of CUDA_VISIBLE_DEVICES, or null) leaves, in its
// order: indices or unique starts of a UUID; the first entry that names no device ends the list.
std::vector<int> visible_positions(const char* visible);

// The devices the program sees. The first call reads CUDA_VISIBLE_DEVICES; as with CUDA, a later
// change of the variable has no effect.
const std::vector<DeviceFacts>& devices();
int device_count() noexcept;

int current_device() noexcept;
void set_current_device(int index);

// Raises torch.AcceleratorError, "invalid device ordinal", unless 0 <= index < device_count().
void check_device_index(int64_t index);

// The device that an argument names: its index, or the current device where it has none.
c10::Device resolve_device(std::optional<c10::Device> device);

// CUDA makes a context on a device when it is first used there.
void open_context(int index) noexcept;
bool has_context(int index);
int count_contexts() noexcept;

// Makes `index` current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) : previous_(current_device()) { set_current_device(index); }
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_;
};

// CUDA cannot be used in a child that was forked after its parent used it. `watch_forks` is called
// at the first use, and calls `in_child` in such children; `check_not_forked` raises
// "initialization error" there.
void watch_forks(void (*in_child)());
bool forked_after_use() noexcept;
void check_not_forked();

} // namespace anyrig::virtual_gpu
