#include "time/cost/copy_cost.h"

#include "time/cost/cost.h"

namespace anyrig::virtual_gpu {

double copy_rate(const GpuFacts& gpu, LinkKind kind) {
  const auto& coefficients = gpu.coefficients.copy;
  switch (kind) {
    case LinkKind::Memory: // each byte is read and written
      return gpu.memory_bytes_per_second / 2 *
          gpu.coefficients.memory.fraction[static_cast<size_t>(Access::Pointwise)];
    case LinkKind::Nvlink:
      return gpu.link_bytes_per_second * coefficients.link_fraction;
    case LinkKind::Pcie:
      return gpu.pcie_bytes_per_second * coefficients.pcie_fraction;
    case LinkKind::Network:
      return gpu.network_bytes_per_second * coefficients.network_fraction;
  }
  return 0;
}

double copy_seconds(const GpuFacts& gpu, const Link& link, double bytes, bool is_pageable) {
  const auto& coefficients = gpu.coefficients.copy;
  const double rate = is_pageable
      ? slower(link.bytes_per_second, gpu.pcie_bytes_per_second * coefficients.pageable_fraction)
      : link.bytes_per_second;
  return coefficients.start_seconds + quotient(bytes, rate);
}

} // namespace anyrig::virtual_gpu
