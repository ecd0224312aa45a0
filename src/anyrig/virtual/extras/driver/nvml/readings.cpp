// What changes while a program runs: memory, which is true; and the sensors, of an idle GPU.
#include "ledger.h"
#include "session.h"

#include <algorithm>
#include <chrono>

using namespace anyrig::nvml;

namespace {

constexpr unsigned kSamplePeriodMicroseconds = 167'000;
constexpr unsigned kPcieLanes = 16;
constexpr unsigned long long kIdle = 1;  // nvmlClocksEventReasonGpuIdle

unsigned long long used_bytes(const Rig& rig, const Gpu& gpu) {
  unsigned long long bytes = 0;
  for (const Process& holder : holders(rig, gpu.position)) bytes += holder.used;
  return std::min(bytes, gpu.memory_bytes);
}

/// Writes processes into the caller's array, which may be too short.
template <class Written>
int write_processes(const void* handle, unsigned* count, Written* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu& gpu) {
    if (count == nullptr) return kInvalidArgument;
    const std::vector<Process> found = holders(rig, gpu.position);
    const unsigned room = *count;
    *count = static_cast<unsigned>(found.size());
    if (found.empty()) return kSuccess;
    if (room < found.size()) return kInsufficientSize;
    if (out == nullptr) return kInvalidArgument;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if constexpr (sizeof(Written) == sizeof(ProcessV1)) {
        out[i] = Written{found[i].pid, found[i].used};
      } else {
        out[i] = found[i];
      }
    }
    return kSuccess;
  });
}

int no_processes(const void* handle, unsigned* count) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, count); });
}

int limit(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    return gpu.limit_milliwatts == 0 ? kNotSupported
                                     : static_cast<Result>(give(gpu.limit_milliwatts, out));
  });
}

/// Of the multiprocessors and of what is counted with them; of memory it is not known.
int clock_rate(const void* handle, unsigned type, unsigned* out) {
  constexpr unsigned kMemory = 2, kTypes = 4;
  return with_gpu(handle, [&](const Rig& rig, const Gpu&) {
    if (type >= kTypes) return kInvalidArgument;
    return type == kMemory ? kNotSupported : static_cast<Result>(give(rig.clock_mhz, out));
  });
}

int no_use_of(const void* handle, unsigned* percent, unsigned* period) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) {
    if (period != nullptr) *period = kSamplePeriodMicroseconds;
    return give(0u, percent);
  });
}

}  // namespace

NVML_FUNCTION nvmlDeviceGetMemoryInfo(const void* handle, Memory* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu& gpu) {
    const unsigned long long used = used_bytes(rig, gpu);
    return give(Memory{gpu.memory_bytes, gpu.memory_bytes - used, used}, out);
  });
}
NVML_FUNCTION nvmlDeviceGetMemoryInfo_v2(const void* handle, MemoryV2* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu& gpu) {
    if (out == nullptr) return kInvalidArgument;
    if (out->version != kMemoryV2) return kVersionMismatch;
    const unsigned long long used = used_bytes(rig, gpu);
    *out = MemoryV2{kMemoryV2, gpu.memory_bytes, 0, gpu.memory_bytes - used, used};
    return kSuccess;
  });
}

NVML_FUNCTION nvmlDeviceGetComputeRunningProcesses(
    const void* handle,
    unsigned* count,
    ProcessV1* out) {
  return write_processes(handle, count, out);
}
NVML_FUNCTION nvmlDeviceGetComputeRunningProcesses_v2(
    const void* handle,
    unsigned* count,
    Process* out) {
  return write_processes(handle, count, out);
}
NVML_FUNCTION nvmlDeviceGetComputeRunningProcesses_v3(
    const void* handle,
    unsigned* count,
    Process* out) {
  return write_processes(handle, count, out);
}
NVML_FUNCTION nvmlDeviceGetGraphicsRunningProcesses(const void* handle, unsigned* count, void*) {
  return no_processes(handle, count);
}
NVML_FUNCTION nvmlDeviceGetGraphicsRunningProcesses_v2(const void* handle, unsigned* count, void*) {
  return no_processes(handle, count);
}
NVML_FUNCTION nvmlDeviceGetGraphicsRunningProcesses_v3(const void* handle, unsigned* count, void*) {
  return no_processes(handle, count);
}
NVML_FUNCTION nvmlDeviceGetMPSComputeRunningProcesses(const void* handle, unsigned* count, void*) {
  return no_processes(handle, count);
}
NVML_FUNCTION nvmlDeviceGetMPSComputeRunningProcesses_v2(
    const void* handle,
    unsigned* count,
    void*) {
  return no_processes(handle, count);
}
NVML_FUNCTION nvmlDeviceGetMPSComputeRunningProcesses_v3(
    const void* handle,
    unsigned* count,
    void*) {
  return no_processes(handle, count);
}

NVML_FUNCTION nvmlDeviceGetUtilizationRates(const void* handle, Utilization* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu&) {
    return give(Utilization{rig.idle_percent, rig.idle_percent}, out);
  });
}
NVML_FUNCTION nvmlDeviceGetEncoderUtilization(const void* handle, unsigned* out, unsigned* period) {
  return no_use_of(handle, out, period);
}
NVML_FUNCTION nvmlDeviceGetDecoderUtilization(const void* handle, unsigned* out, unsigned* period) {
  return no_use_of(handle, out, period);
}
NVML_FUNCTION nvmlDeviceGetTemperature(const void* handle, unsigned sensor, unsigned* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu&) {
    return sensor == 0 ? give(rig.idle_celsius, out) : static_cast<int>(kInvalidArgument);
  });
}
// GPUs of servers have none.
NVML_FUNCTION nvmlDeviceGetFanSpeed(const void* handle, unsigned*) {
  return with_gpu(handle, [](const Rig&, const Gpu&) { return kNotSupported; });
}
NVML_FUNCTION nvmlDeviceGetNumFans(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}

NVML_FUNCTION nvmlDeviceGetPowerUsage(const void* handle, unsigned* out) {
  return with_gpu(
      handle, [&](const Rig& rig, const Gpu&) { return give(rig.idle_milliwatts, out); });
}
NVML_FUNCTION nvmlDeviceGetPowerManagementMode(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(1u, out); });
}
NVML_FUNCTION nvmlDeviceGetPowerManagementLimit(const void* handle, unsigned* out) {
  return limit(handle, out);
}
NVML_FUNCTION nvmlDeviceGetPowerManagementDefaultLimit(const void* handle, unsigned* out) {
  return limit(handle, out);
}
NVML_FUNCTION nvmlDeviceGetEnforcedPowerLimit(const void* handle, unsigned* out) {
  return limit(handle, out);
}
/// In millijoules, since the machine started: what the power of an idle GPU adds up to.
NVML_FUNCTION nvmlDeviceGetTotalEnergyConsumption(const void* handle, unsigned long long* out) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu&) {
    const auto up = std::chrono::steady_clock::now().time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(up).count();
    return give(static_cast<unsigned long long>(milliseconds) * rig.idle_milliwatts / 1000, out);
  });
}

NVML_FUNCTION nvmlDeviceGetClockInfo(const void* handle, unsigned type, unsigned* out) {
  return clock_rate(handle, type, out);
}
NVML_FUNCTION nvmlDeviceGetMaxClockInfo(const void* handle, unsigned type, unsigned* out) {
  return clock_rate(handle, type, out);
}
NVML_FUNCTION nvmlDeviceGetApplicationsClock(const void* handle, unsigned type, unsigned* out) {
  return clock_rate(handle, type, out);
}
NVML_FUNCTION nvmlDeviceGetCurrentClocksThrottleReasons(
    const void* handle,
    unsigned long long* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(kIdle, out); });
}
NVML_FUNCTION nvmlDeviceGetCurrentClocksEventReasons(const void* handle, unsigned long long* out) {
  return nvmlDeviceGetCurrentClocksThrottleReasons(handle, out);
}
NVML_FUNCTION nvmlDeviceGetPerformanceState(const void* handle, int* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0, out); });
}

NVML_FUNCTION nvmlDeviceGetMaxPcieLinkGeneration(const void* handle, unsigned* out) {
  return with_gpu(
      handle, [&](const Rig&, const Gpu& gpu) { return give(gpu.pcie_generation, out); });
}
NVML_FUNCTION nvmlDeviceGetCurrPcieLinkGeneration(const void* handle, unsigned* out) {
  return nvmlDeviceGetMaxPcieLinkGeneration(handle, out);
}
NVML_FUNCTION nvmlDeviceGetMaxPcieLinkWidth(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(kPcieLanes, out); });
}
NVML_FUNCTION nvmlDeviceGetCurrPcieLinkWidth(const void* handle, unsigned* out) {
  return nvmlDeviceGetMaxPcieLinkWidth(handle, out);
}
NVML_FUNCTION nvmlDeviceGetPcieThroughput(const void* handle, unsigned, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}
