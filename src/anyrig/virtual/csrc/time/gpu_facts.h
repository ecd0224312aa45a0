// The facts of a GPU that determine how long work takes. A rate of 0 is unknown: work that it
// bounds takes no time.
#pragma once

#include "time/coefficients.h"
#include "time/work.h"

#include <array>
#include <string>

namespace anyrig::virtual_gpu {

struct GpuFacts {
  // From the data sheet.
  double multiprocessors = 1;
  double clock_hertz = 0; // boost
  double l2_bytes = 0;
  double memory_bytes_per_second = 0;
  std::array<double, kPrecisions> flops_per_second{};
  std::array<bool, kPrecisions> has_matrix_units{};
  // Links to other devices and to the host, in one direction.
  double link_bytes_per_second = 0;
  double pcie_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  // Devices of one node with the same text are connected by a link. Empty: no link.
  std::string fabric;

  Coefficients coefficients;

  double rate(Precision precision) const {
    return flops_per_second[static_cast<size_t>(precision)];
  }
  bool uses_matrix_units(Precision precision) const {
    return has_matrix_units[static_cast<size_t>(precision)];
  }
};

} // namespace anyrig::virtual_gpu
