// Fused attention: a block of threads computes a tile of the queries of one head and walks over the
// keys. For each score it computes two products along the head (backward: five) and an exponential,
// which other units than the matrix units compute.
//
// The memory-efficient kernel multiplies floats on matrix units with TF32, as three products that
// restore the precision (CUTLASS: OpMultiplyAddFastF32).
#include "time/cost/cost.h"

#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

constexpr double kQueryTile = 128;
constexpr double kKeyTile = 64;
constexpr double kProductsOfAFloat = 3;

double rate_of(const GpuFacts& gpu, const Work& work) {
  const bool splits_floats = work.attention.kernel == AttentionKernel::Efficient &&
      work.element_bytes == 4 && gpu.uses_matrix_units(Precision::Tfloat32);
  return splits_floats ? gpu.rate(Precision::Tfloat32) / kProductsOfAFloat
                       : gpu.rate(work.precision);
}

} // namespace

double attention_seconds(const GpuFacts& gpu, const Work& work) {
  const auto& coefficients = gpu.coefficients.attention;
  const auto& shape = work.attention;
  const auto& efficiency =
      shape.backward ? coefficients.backward_efficiency : coefficients.forward_efficiency;
  const double peak = rate_of(gpu, work);
  const double rate = peak * efficiency[static_cast<size_t>(shape.kernel)];
  const double memory =
      quotient(work.bytes(), gpu.memory_bytes_per_second * coefficients.memory_fraction);
  const double scores = shape.batch * shape.heads * shape.queries * shape.keys;
  if (scores == 0 || rate <= 0) {
    return memory;
  }
  const double flops_per_score = work.flops / scores;
  const double products = shape.backward ? 5 : 2;
  // The tiles of the pass: of queries forward, of keys backward.
  const double across = shape.backward ? shape.keys : shape.queries;
  const double along = shape.backward ? shape.queries : shape.keys;
  const double tile = kQueryTile;
  const double blocks = shape.batch * shape.heads * std::ceil(across / tile);
  const double steps =
      kKeyTile * std::ceil(along * work.share / kKeyTile) + coefficients.block_overhead;
  // An exponential takes the same time whatever the rate of the products, in which it is counted.
  const double slower = std::min(1.0, quotient(peak, gpu.rate(Precision::Bfloat16)));
  const double block_flops =
      tile * steps * (flops_per_score + 2 * products * coefficients.head_overhead * slower);
  const double waves = std::max(1.0, blocks / gpu.multiprocessors);
  return std::max(memory, waves * block_flops / (rate / gpu.multiprocessors));
}

} // namespace anyrig::virtual_gpu
