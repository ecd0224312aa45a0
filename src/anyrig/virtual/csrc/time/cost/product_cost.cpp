// Products: blocks of threads compute tiles of the result, in waves over the multiprocessors.
//
//   result      one multiprocessor a tile            the last wave fills some only
//   +---+---+   wave 1: tiles 0 .. 107               wave 3: tiles 216 .. 223
//   | 0 | 1 |
//   +---+---+   A tile that reaches beyond the result costs as much as a full one. A product with
//   | 2 | 3 |   few tiles and a long k is split along k; the parts are added in memory.
//   +---+---+
#include "time/cost/cost.h"

#include <cmath>
#include <limits>

namespace anyrig::virtual_gpu {
namespace {

constexpr double kSplits[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr double kLeastSplitK = 256;
constexpr double kLongK = 8192;

double lone_share_of(const TileCoefficients& coefficients, double m, double n) {
  return std::min(
      1.0, coefficients.lone_share * std::pow(m * n / (128.0 * 128.0), coefficients.lone_exponent));
}

// Returns the time of `blocks` blocks, in times that a multiprocessor takes for a block when it has
// several to choose from. A lone block takes 1 / `lone_share` of it.
double waves_of(double blocks, double multiprocessors, double lone_share, double exponent) {
  const double waves = blocks / multiprocessors;
  const double whole = std::floor(waves);
  const double last = waves - whole;
  const double full = last > 0 ? whole + (whole > 0 ? std::pow(last, exponent) : 1.0) : whole;
  return std::max(full, 1 / lone_share);
}

} // namespace

// The clock falls while a long kernel draws more than the power limit.
double throttled(double seconds, double throttle, double throttle_seconds) {
  const double ratio = quotient(seconds, throttle_seconds);
  return seconds * (1 + throttle * ratio * ratio / (1 + ratio * ratio));
}

double tiled_seconds(
    const GpuFacts& gpu,
    const TileCoefficients& coefficients,
    const ProductShape& shape,
    double flops_per_second,
    bool may_split) {
  if (flops_per_second <= 0 || shape.m * shape.n * shape.batch == 0) {
    return 0;
  }
  const double rate = flops_per_second / gpu.multiprocessors;
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kTiles.size(); ++i) {
    if (coefficients.efficiency[i] <= 0) {
      continue;
    }
    const auto [m, n] = kTiles[i];
    const double tiles = std::ceil(shape.m / m) * std::ceil(shape.n / n) * shape.batch;
    const double tile_rate = rate * coefficients.efficiency[i];
    const double around =
        quotient(coefficients.block_cycles * m * n / (128.0 * 128.0), gpu.clock_hertz);
    for (const double split : kSplits) {
      if (split > 1 && (!may_split || shape.k < kLeastSplitK * split)) {
        break;
      }
      const double block = 2 * m * n * (shape.k / split) / tile_rate + around;
      if (tiles * split / gpu.multiprocessors * block >= best) {
        continue; // a last wave takes at least its share: saves the powers below
      }
      double seconds = waves_of(
                           tiles * split, gpu.multiprocessors, lone_share_of(coefficients, m, n),
                           coefficients.wave_exponent) *
          block;
      if (split > 1) { // writes and reads the parts in float32
        seconds +=
            quotient(8 * shape.m * shape.n * shape.batch * split, gpu.memory_bytes_per_second);
      }
      best = std::min(best, seconds);
    }
  }
  const double doublings = std::max(0.0, std::log2(shape.k / kLongK));
  return best * (1 + coefficients.long_penalty * doublings);
}

double product_seconds(const GpuFacts& gpu, const Work& work) {
  const auto& coefficients = gpu.uses_matrix_units(work.precision) ? gpu.coefficients.product_tensor
      : work.product.batch > 1                                     ? gpu.coefficients.batched_simt
                                                                   : gpu.coefficients.product_simt;
  const double computing =
      work.share * tiled_seconds(gpu, coefficients, work.product, gpu.rate(work.precision));
  return overlapped(
      throttled(computing, coefficients.throttle, coefficients.throttle_seconds),
      moving_seconds(gpu, work.bytes(), work.footprint_bytes, coefficients.memory_fraction),
      coefficients.overlap);
}

} // namespace anyrig::virtual_gpu
