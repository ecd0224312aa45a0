// The GPUs of the node that this process is on, from the text that ../facts.py writes.
#pragma once

#include "interface.h"

#include <string>
#include <vector>

namespace anyrig::nvml {

struct Gpu {
  unsigned index = 0;          // in the node
  std::size_t position = 0;    // in the rig, all nodes counted through
  std::string name, uuid;
  unsigned long long memory_bytes = 0;
  int capability_major = 0, capability_minor = 0;
  unsigned multiprocessors = 0;
  unsigned architecture = 0;   // nvmlDeviceArchitecture_t
  unsigned limit_milliwatts = 0;  // 0: not known
  unsigned nvlinks = 0;        // that the GPU has
  unsigned nvlink_version = 0, nvlink_megabytes_per_second = 0;
  unsigned pcie_generation = 0;
};

struct Rig {
  std::string ledger;           // the file by which processes share the GPUs
  std::size_t gpus_in_all = 0;  // of all nodes
  std::string driver_version;
  int cuda_version = 0;
  unsigned idle_percent = 0, idle_celsius = 0, idle_milliwatts = 0, clock_mhz = 0;
  std::vector<Gpu> gpus;
};

/// Fills `rig` with the facts in `text` about the node that `node_word`, the value of GROUP_RANK,
/// names; false if there is no such node. Throws std::logic_error at text that is not a number.
bool read_rig(const std::string& text, const char* node_word, Rig& rig);

}  // namespace anyrig::nvml
