// Work that is bound by memory: bytes over the bandwidth that its kind of access reaches. What fits
// the L2 cache moves faster.
#include "time/cost/cost.h"

namespace anyrig::virtual_gpu {

double moving_seconds(const GpuFacts& gpu, double bytes, double footprint_bytes, double fraction) {
  const auto& coefficients = gpu.coefficients.memory;
  const double room = coefficients.cache_share * gpu.l2_bytes;
  const double cached = footprint_bytes > 0 ? std::min(1.0, room / footprint_bytes) : 0;
  const double rate = gpu.memory_bytes_per_second * fraction;
  return quotient(bytes * (1 - cached + cached / coefficients.cache_speedup), rate);
}

// A block of threads works on each row, and starts and ends with a latency. The columns of a
// factorization wait for each other.
double row_seconds(const GpuFacts& gpu, const MemoryShape& shape) {
  switch (shape.access) {
    case Access::Normalization:
    case Access::NormalizationBackward:
      return quotient(
          shape.rows * gpu.coefficients.memory.row_cycles, gpu.multiprocessors * gpu.clock_hertz);
    case Access::Factorization:
      return quotient(
          shape.rows * gpu.coefficients.memory.factorization_cycles, gpu.clock_hertz);
    default:
      return 0;
  }
}

double memory_seconds(const GpuFacts& gpu, const Work& work) {
  const double fraction =
      gpu.coefficients.memory.fraction[static_cast<size_t>(work.memory.access)];
  return row_seconds(gpu, work.memory) +
      moving_seconds(gpu, work.bytes(), work.footprint_bytes, fraction);
}

} // namespace anyrig::virtual_gpu
