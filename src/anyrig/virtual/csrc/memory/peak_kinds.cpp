#include "memory/peak_kinds.h"

#include "memory/lazy_clones.h"
#include "time/origin.h"

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

class PeakOfDevice {
 public:
  int64_t next_number() { return ++last_number_; }

  void forget() {
    std::lock_guard<std::mutex> guard(mutex_);
    peak_number_ = -1;
    is_open_ = false;
    kinds_ = {};
  }

  void move() {
    std::lock_guard<std::mutex> guard(mutex_);
    peak_number_ = last_number_;
    is_open_ = true;
    kinds_ = {};
  }

  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  void note_released(const DeviceMemory& memory) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_open_ && memory.is_of_forward && was_there(memory)) {
      kinds_.activations += static_cast<int64_t>(memory.block->bytes);
    }
  }

  void note_named(const DeviceMemory& memory, int64_t PeakKinds::* kind) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_open_ && was_there(memory)) {
      kinds_.*kind += static_cast<int64_t>(memory.block->bytes);
    }
  }

  void close() { is_open_ = false; }

  std::optional<PeakKinds> kinds() {
    std::lock_guard<std::mutex> guard(mutex_);
    return is_open_ || peak_number_ < 0 ? std::nullopt : std::optional(kinds_);
  }

 private:
  bool was_there(const DeviceMemory& memory) const { return memory.number <= peak_number_; }

  std::mutex mutex_;
  std::atomic<int64_t> last_number_{0};
  std::atomic<bool> is_open_{false};
  int64_t peak_number_ = -1;
  PeakKinds kinds_;
};

std::array<PeakOfDevice, kMaxDevices>& device_peaks() {
  static auto* all = new std::array<PeakOfDevice, kMaxDevices>();
  return *all; // memory may be released while the process ends
}

std::atomic<bool> watches_peaks{false};
std::atomic<bool> in_update{false};

} // namespace

void watch_peaks(bool watches) {
  if (watches) {
    for (auto& peak : device_peaks()) {
      peak.forget();
    }
  }
  in_update.store(false, std::memory_order_relaxed);
  watches_peaks.store(watches, std::memory_order_relaxed);
}

void note_made(DeviceMemory& memory) {
  if (C10_LIKELY(!watches_peaks.load(std::memory_order_relaxed))) {
    return;
  }
  memory.number = device_peaks()[memory.device].next_number();
  memory.is_of_forward =
      !memory.is_workspace && !replays_graph() && !in_update.load(std::memory_order_relaxed);
}

void note_released(const DeviceMemory& memory) {
  auto& peak = device_peaks()[memory.device];
  if (C10_UNLIKELY(peak.is_open())) {
    peak.note_released(memory);
  }
}

void note_peak(c10::DeviceIndex device) {
  device_peaks()[device].move();
}

void note_update(bool updates) {
  in_update.store(updates, std::memory_order_relaxed);
}

bool has_open_peak() {
  for (const auto& peak : device_peaks()) {
    if (peak.is_open()) {
      return true;
    }
  }
  return false;
}

void close_peaks(const NamedStorages& named) {
  std::unordered_set<const DeviceMemory*> counted;
  const auto count = [&](const std::vector<c10::Storage>& storages, int64_t PeakKinds::* kind) {
    for (const auto& storage : storages) {
      if (storage.device_type() != kDeviceType || is_lazy_clone(*storage.unsafeGetStorageImpl())) {
        continue;
      }
      const auto* memory = device_memory(storage.data_ptr());
      if (memory != nullptr && memory->block != nullptr && counted.insert(memory).second) {
        device_peaks()[memory->device].note_named(*memory, kind);
      }
    }
  };
  count(named.parameters, &PeakKinds::parameters);
  count(named.gradients, &PeakKinds::gradients);
  count(named.optimizer, &PeakKinds::optimizer);
  for (auto& peak : device_peaks()) {
    peak.close();
  }
}

std::optional<PeakKinds> peak_kinds(c10::DeviceIndex device) {
  return device_peaks()[device].kinds();
}

} // namespace anyrig::virtual_gpu
