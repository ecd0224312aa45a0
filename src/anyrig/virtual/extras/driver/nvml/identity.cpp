// Which GPU is which: handles, names, numbers, and what does not change.
#include "session.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include <sched.h>
#include <unistd.h>

using namespace anyrig::nvml;

namespace {

constexpr unsigned kNvidia = 0x10DE;  // of PCI's vendors; the number of the model is not known

// A bus for each GPU: 00000000:01:00.0 is the first.
unsigned bus_of(const Gpu& gpu) {
  return gpu.index + 1;
}

/// The GPU for which `is_meant` holds.
template <class Condition>
int find_gpu(const void** out, Condition&& is_meant) {
  const Rig* rig = open_rig();
  if (rig == nullptr) return kUninitialized;
  if (out == nullptr) return kInvalidArgument;
  for (const Gpu& gpu : rig->gpus) {
    if (!is_meant(gpu)) continue;
    *out = &gpu;
    return kSuccess;
  }
  return kNotFound;
}

/// Thirteen digits, as boards have them, made of the UUID.
std::string serial_of(const Gpu& gpu) {
  const unsigned long long digits = std::strtoull(gpu.uuid.substr(4, 8).c_str(), nullptr, 16);
  std::string text = std::to_string(digits);
  return "132" + std::string(10 - text.size(), '0') + text;
}

// CUDA C++ programming guide: units for float32 in a multiprocessor.
unsigned cores_of_multiprocessor(const Gpu& gpu) {
  const int capability = 10 * gpu.capability_major + gpu.capability_minor;
  return capability <= 80 ? 64 : 128;
}

int write_processors(unsigned words, unsigned long* out) {
  if (out == nullptr || words == 0) return kInvalidArgument;
  std::memset(out, 0, words * sizeof *out);
  constexpr unsigned kBits = 8 * sizeof *out;
  for (long i = 0, count = sysconf(_SC_NPROCESSORS_CONF); i < count; ++i)
    if (static_cast<unsigned>(i) / kBits < words) out[i / kBits] |= 1ul << (i % kBits);
  return kSuccess;
}

}  // namespace

NVML_FUNCTION nvmlDeviceGetHandleByIndex_v2(unsigned index, const void** out) {
  const int found = find_gpu(out, [&](const Gpu& gpu) { return gpu.index == index; });
  return found == kNotFound ? kInvalidArgument : found;
}
NVML_FUNCTION nvmlDeviceGetHandleByIndex(unsigned index, const void** out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}
NVML_FUNCTION nvmlDeviceGetHandleByUUID(const char* uuid, const void** out) {
  if (uuid == nullptr) return kInvalidArgument;
  return find_gpu(out, [&](const Gpu& gpu) { return gpu.uuid == uuid; });
}
NVML_FUNCTION nvmlDeviceGetHandleBySerial(const char* serial, const void** out) {
  if (serial == nullptr) return kInvalidArgument;
  return find_gpu(out, [&](const Gpu& gpu) { return serial_of(gpu) == serial; });
}
NVML_FUNCTION nvmlDeviceGetHandleByPciBusId_v2(const char* text, const void** out) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (text == nullptr ||
      (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3 &&
       (domain = 0, std::sscanf(text, "%x:%x.%x", &bus, &device, &function) < 2)))
    return kInvalidArgument;
  return find_gpu(out, [&](const Gpu& gpu) {
    return domain == 0 && bus == bus_of(gpu) && device == 0 && function == 0;
  });
}
NVML_FUNCTION nvmlDeviceGetHandleByPciBusId(const char* text, const void** out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

NVML_FUNCTION nvmlDeviceGetIndex(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) { return give(gpu.index, out); });
}
NVML_FUNCTION nvmlDeviceGetMinorNumber(const void* handle, unsigned* out) {
  return nvmlDeviceGetIndex(handle, out);
}
NVML_FUNCTION nvmlDeviceGetName(const void* handle, char* out, unsigned size) {
  return with_gpu(
      handle, [&](const Rig&, const Gpu& gpu) { return write_text(gpu.name.c_str(), out, size); });
}
NVML_FUNCTION nvmlDeviceGetUUID(const void* handle, char* out, unsigned size) {
  return with_gpu(
      handle, [&](const Rig&, const Gpu& gpu) { return write_text(gpu.uuid.c_str(), out, size); });
}
NVML_FUNCTION nvmlDeviceGetSerial(const void* handle, char* out, unsigned size) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    return write_text(serial_of(gpu).c_str(), out, size);
  });
}

NVML_FUNCTION nvmlDeviceGetPciInfo_v3(const void* handle, Pci* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    if (out == nullptr) return kInvalidArgument;
    *out = Pci{{}, 0, bus_of(gpu), 0, kNvidia, kNvidia, {}};
    std::snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", out->bus);
    std::snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return kSuccess;
  });
}
NVML_FUNCTION nvmlDeviceGetPciInfo_v2(const void* handle, PciV2* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    if (out == nullptr) return kInvalidArgument;
    *out = PciV2{{}, 0, bus_of(gpu), 0, kNvidia, kNvidia, {}};
    std::snprintf(out->bus_id, sizeof out->bus_id, "0000:%02X:00.0", out->bus);
    return kSuccess;
  });
}
NVML_FUNCTION nvmlDeviceGetPciInfo(const void* handle, PciV2* out) {
  return nvmlDeviceGetPciInfo_v2(handle, out);
}

NVML_FUNCTION nvmlDeviceGetCudaComputeCapability(const void* handle, int* major, int* minor) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    if (major == nullptr) return kInvalidArgument;
    *major = gpu.capability_major;
    return static_cast<Result>(give(gpu.capability_minor, minor));
  });
}
NVML_FUNCTION nvmlDeviceGetArchitecture(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) { return give(gpu.architecture, out); });
}
NVML_FUNCTION nvmlDeviceGetNumGpuCores(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    return give(gpu.multiprocessors * cores_of_multiprocessor(gpu), out);
  });
}
NVML_FUNCTION nvmlDeviceGetMultiGpuBoard(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}

// What servers are set to: persistence on, any number of processes, no display, no MIG.
NVML_FUNCTION nvmlDeviceGetPersistenceMode(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(1u, out); });
}
NVML_FUNCTION nvmlDeviceGetComputeMode(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}
NVML_FUNCTION nvmlDeviceGetDisplayMode(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}
NVML_FUNCTION nvmlDeviceGetDisplayActive(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}
NVML_FUNCTION nvmlDeviceGetMaxMigDeviceCount(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}
NVML_FUNCTION nvmlDeviceIsMigDeviceHandle(const void* handle, unsigned* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return give(0u, out); });
}

// Each GPU is near every processor of the host.
NVML_FUNCTION nvmlDeviceGetCpuAffinity(const void* handle, unsigned words, unsigned long* out) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) { return write_processors(words, out); });
}
NVML_FUNCTION nvmlDeviceGetCpuAffinityWithinScope(
    const void* handle,
    unsigned words,
    unsigned long* out,
    unsigned) {
  return nvmlDeviceGetCpuAffinity(handle, words, out);
}
