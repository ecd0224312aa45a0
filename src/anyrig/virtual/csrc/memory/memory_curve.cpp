#include "memory/memory_curve.h"

#include "device/device.h"
#include "memory/gpu_memory.h"
#include "memory/memory.h"
#include "memory/peak_kinds.h"
#include "time/clock.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <tuple>

namespace anyrig::virtual_gpu {
namespace {

constexpr size_t kMostSamples = 4096;

std::atomic<bool> is_watched{false};

std::array<std::atomic<int64_t>, kMaxDevices>& workspaces_in_use() {
  static auto* bytes = new std::array<std::atomic<int64_t>, kMaxDevices>();
  return *bytes; // memory may be released while the process ends
}

bool is_larger(const MemorySample& one, const MemorySample& other) {
  return std::tuple(one.total_bytes(), one.tensor_bytes + one.workspace_bytes) >
      std::tuple(other.total_bytes(), other.tensor_bytes + other.workspace_bytes);
}

class CurveOfDevice {
 public:
  // Returns whether this is the peak until now.
  bool add(const MemorySample& sample) {
    std::lock_guard<std::mutex> guard(mutex_);
    const bool is_peak = curve_.samples.empty() || is_larger(sample, curve_.peak);
    if (is_peak) {
      curve_.peak = sample;
    }
    add_to_curve(sample);
    return is_peak;
  }

  void clear() {
    std::lock_guard<std::mutex> guard(mutex_);
    curve_ = {};
  }

  MemoryCurve read() {
    std::lock_guard<std::mutex> guard(mutex_);
    return curve_;
  }

 private:
  void add_to_curve(const MemorySample& sample) {
    auto& samples = curve_.samples;
    // Of one moment, the largest sample and the last one are kept.
    const size_t count = samples.size();
    if (count >= 2 && samples[count - 2].seconds == sample.seconds) {
      if (is_larger(samples[count - 1], samples[count - 2])) {
        samples[count - 2] = samples[count - 1];
      }
      samples[count - 1] = sample;
      return;
    }
    if (count >= kMostSamples) {
      thin_out();
    }
    samples.push_back(sample);
  }

  void thin_out() {
    auto& samples = curve_.samples;
    size_t kept = 0;
    for (size_t i = 0; i + 1 < samples.size(); i += 2) {
      samples[kept++] = is_larger(samples[i], samples[i + 1]) ? samples[i] : samples[i + 1];
    }
    samples.resize(kept);
  }

  std::mutex mutex_;
  MemoryCurve curve_;
};

CurveOfDevice& curve_of(c10::DeviceIndex device) {
  static auto* curves = new std::array<CurveOfDevice, kMaxDevices>();
  return (*curves)[device];
}

MemorySample take_sample(c10::DeviceIndex device) {
  const auto [allocated, reserved] = caching_allocator(device).current_bytes();
  const auto outside = gpu_memory(device);
  MemorySample sample;
  sample.seconds = Clock::get().record().latest_host_seconds();
  sample.workspace_bytes = workspaces_in_use()[device].load(std::memory_order_relaxed);
  sample.tensor_bytes = allocated - sample.workspace_bytes;
  sample.cached_bytes = reserved - allocated;
  sample.context_bytes = static_cast<int64_t>(outside[static_cast<size_t>(GpuUse::Context)]);
  sample.collective_bytes =
      static_cast<int64_t>(outside[static_cast<size_t>(GpuUse::Communication)]);
  sample.mapped_bytes = static_cast<int64_t>(outside[static_cast<size_t>(GpuUse::Mapped)]);
  return sample;
}

} // namespace

void watch_memory(bool watches) {
  if (watches) {
    // Not up to device_count(), which would choose the devices before the program does.
    for (int device = 0; device < kMaxDevices; ++device) {
      curve_of(static_cast<c10::DeviceIndex>(device)).clear();
    }
  }
  watch_peaks(watches);
  is_watched.store(watches, std::memory_order_relaxed);
}

void note_memory(c10::DeviceIndex device) {
  if (C10_UNLIKELY(is_watched.load(std::memory_order_relaxed))) {
    if (C10_UNLIKELY(curve_of(device).add(take_sample(device)))) {
      note_peak(device);
    }
  }
}

void count_workspace(c10::DeviceIndex device, int64_t change) {
  workspaces_in_use()[device].fetch_add(change, std::memory_order_relaxed);
}

MemoryCurve memory_curve(c10::DeviceIndex device) {
  if (has_context(device)) {
    note_memory(device);
  }
  return curve_of(device).read();
}

} // namespace anyrig::virtual_gpu
