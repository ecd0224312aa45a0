// The part of NVIDIA's nvml.h that is implemented here: codes, structs, and how a function is
// declared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#define NVML_FUNCTION extern "C" __attribute__((visibility("default"))) int

namespace anyrig::nvml {

// nvmlReturn_t
enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kLibraryNotFound = 12,
  kVersionMismatch = 25,
  kUnknown = 999,
};

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct MemoryV2 {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | 2u << 24;

struct Utilization {  // nvmlUtilization_t
  unsigned gpu_percent, memory_percent;
};

struct ProcessV1 {  // nvmlProcessInfo_v1_t
  unsigned pid;
  unsigned long long used;
};

struct Process {  // nvmlProcessInfo_v2_t, which version 3 of the functions takes too
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct PciV2 {  // nvmlPciInfo_t before CUDA 9.0
  char bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id, reserved[4];
};

struct Pci {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct FieldValue {  // nvmlFieldValue_t
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type;
  int result;
  union {
    unsigned as_unsigned;
    unsigned long long as_bytes;
  };
};

/// Writes `text` where a caller has room for `size` bytes.
inline int write_text(const char* text, char* out, unsigned size) {
  if (out == nullptr) return kInvalidArgument;
  const int length = std::snprintf(out, size, "%s", text);
  return static_cast<unsigned>(length) < size ? kSuccess : kInsufficientSize;
}

template <class Value>
int give(Value value, Value* out) {
  if (out == nullptr) return kInvalidArgument;
  *out = value;
  return kSuccess;
}

}  // namespace anyrig::nvml
