// Work that is bound by memory: bytes over the bandwidth that its kind of access reaches. What fits
// the L2 cache moves faster. Kernels that access element by element are bound by the number of
// elements if these are short.
#include "time/cost/cost.h"

namespace anyrig::virtual_gpu {

double moving_seconds(const GpuFacts& gpu, double bytes, double footprint_bytes, double fraction) {
  const auto& coefficients = gpu.coefficients.memory;
  const double room = coefficients.cache_share * gpu.l2_bytes;
  const double cached = footprint_bytes > 0 ? std::min(1.0, room / footprint_bytes) : 0;
  const double rate = gpu.memory_bytes_per_second * fraction;
  return quotient(bytes * (1 - cached + cached / coefficients.cache_speedup), rate);
}

// Softmax along columns: few columns wait for each row, and many hinder each other.
double column_seconds(const GpuFacts& gpu, const MemoryShape& shape) {
  const auto& coefficients = gpu.coefficients.memory;
  const bool is_backward = shape.access == Access::SoftmaxBackward;
  return std::max(
      quotient(shape.rows * coefficients.softmax_column_cycles, gpu.clock_hertz),
      quotient(
          shape.elements * coefficients.softmax_column_element_cycles[is_backward ? 1 : 0],
          gpu.multiprocessors * gpu.clock_hertz));
}

// A block of threads works on each row, and starts and ends with a latency. The columns of a
// factorization wait for each other. A thread adds up a part of a column, row by row, or resamples
// a point plane by plane.
double row_seconds(const GpuFacts& gpu, const MemoryShape& shape) {
  const auto& coefficients = gpu.coefficients.memory;
  switch (shape.access) {
    case Access::Reduction:
      return shape.rows == 0 ? 0
                             : coefficients.join_seconds +
              quotient(shape.rows * coefficients.column_cycles, gpu.clock_hertz);
    case Access::Softmax:
    case Access::SoftmaxBackward:
      return shape.rows == 0 ? 0 : column_seconds(gpu, shape);
    case Access::Normalization:
    case Access::NormalizationBackward:
      return quotient(shape.rows * coefficients.row_cycles, gpu.multiprocessors * gpu.clock_hertz);
    case Access::Window:
      return shape.rows * coefficients.window_step_seconds;
    case Access::Factorization:
      return quotient(shape.rows * coefficients.factorization_cycles, gpu.clock_hertz);
    default:
      return 0;
  }
}

double memory_seconds(const GpuFacts& gpu, const Work& work) {
  const auto access = static_cast<size_t>(work.memory.access);
  const auto& coefficients = gpu.coefficients.memory;
  const double by_element = quotient(
      work.memory.elements * coefficients.element_cycles[access],
      gpu.multiprocessors * gpu.clock_hertz);
  const double by_byte =
      moving_seconds(gpu, work.bytes(), work.footprint_bytes, coefficients.fraction[access]);
  const double by_row = row_seconds(gpu, work.memory);
  return work.memory.access == Access::Window ? std::max({by_row, by_element, by_byte})
                                              : by_row + std::max(by_element, by_byte);
}

} // namespace anyrig::virtual_gpu
