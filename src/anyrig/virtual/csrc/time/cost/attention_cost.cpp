// Fused attention: a block of threads computes a tile of the queries of one head and walks over the
// keys. For each score it computes two products along the head (backward: five) and an exponential,
// which other units than the matrix units compute.
#include "time/cost/cost.h"

#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

constexpr double kQueryTile = 128;
constexpr double kKeyTile = 64;

} // namespace

double attention_seconds(const GpuFacts& gpu, const Work& work) {
  const auto& coefficients = gpu.coefficients.attention;
  const auto& shape = work.attention;
  const auto& efficiency =
      shape.backward ? coefficients.backward_efficiency : coefficients.forward_efficiency;
  const double rate = gpu.rate(work.precision) * efficiency[static_cast<size_t>(shape.kernel)];
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
  const double block_flops =
      tile * steps * (flops_per_score + 2 * products * coefficients.head_overhead);
  const double waves = std::max(1.0, blocks / gpu.multiprocessors);
  return std::max(memory, waves * block_flops / (rate / gpu.multiprocessors));
}

} // namespace anyrig::virtual_gpu
