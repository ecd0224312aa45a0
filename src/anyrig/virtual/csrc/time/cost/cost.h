// The cost model: how many seconds a GPU takes for a work record.
//
// One function per family, each in a file of its own. They are pure functions of the GPU's facts,
// which include its coefficients, and of the record. None includes the time of the host.
#pragma once

#include "time/gpu_facts.h"
#include "time/work.h"

#include <algorithm>

namespace anyrig::virtual_gpu {

// Returns the seconds that `work` occupies the GPU: at least the shortest kernel for each kernel.
double gpu_seconds(const GpuFacts& gpu, const Work& work);

double memory_seconds(const GpuFacts& gpu, const Work& work);
double product_seconds(const GpuFacts& gpu, const Work& work);
double convolution_seconds(const GpuFacts& gpu, const Work& work);
double attention_seconds(const GpuFacts& gpu, const Work& work);

// Returns the seconds of a batch of products that is computed in tiles by blocks of threads, at
// `flops_per_second` of the whole GPU. `may_split`: whether several blocks may share a long k.
double tiled_seconds(
    const GpuFacts& gpu,
    const TileCoefficients& coefficients,
    const ProductShape& shape,
    double flops_per_second,
    bool may_split = true);

double throttled(double seconds, double throttle, double throttle_seconds);

// Returns the seconds in which `bytes` move at `fraction` of the bandwidth, or faster if the
// distinct bytes among them fit the L2 cache.
double moving_seconds(const GpuFacts& gpu, double bytes, double footprint_bytes, double fraction);

// Returns the seconds that computing and moving data take concurrently: the longer time plus `part`
// of the shorter.
inline double overlapped(double computing, double moving, double part) {
  return std::max(computing, moving) + part * std::min(computing, moving);
}

inline double quotient(double quantity, double rate) {
  return rate > 0 ? quantity / rate : 0;
}

} // namespace anyrig::virtual_gpu
