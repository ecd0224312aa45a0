// The mapping from the elements of a random kernel to the threads that draw them, and the numbers
// that a launch takes from the generator. Beyond one wave of threads, both depend on the GPU.
//
// Source: calc_execution_policy and distribution_elementwise_grid_stride_kernel in
// aten/src/ATen/native/cuda/DistributionTemplates.h, 2.13.
#pragma once

#include <algorithm>
#include <cstdint>

#include "random/philox.h"

namespace anyrig::virtual_gpu {

/// cudaDeviceProp's multiProcessorCount and maxThreadsPerMultiProcessor, which determine the grid.
struct Multiprocessors {
  uint32_t count;
  uint32_t max_threads;
};

constexpr uint64_t kThreadsPerBlock = 256;
constexpr uint64_t kWordsPerDraw = 4;  // a thread draws all four words of a counter

struct Launch {
  uint64_t elements;
  uint64_t threads;    // in the whole grid
  uint64_t increment;  // of the generator's offset, in words
};

/// Plans a launch over `elements` > 0 in which a thread makes `per_draw` values of four words:
///
///   element   0 ........ threads ........ per_draw * threads ........
///             | value 0   | value 1   ... | value 0, next draw
///   thread    0 .. last   0 .. last   ... 0 .. last
inline Launch plan_launch(uint64_t elements, uint64_t per_draw, Multiprocessors gpu) {
  const uint64_t most_blocks = uint64_t{gpu.count} * (gpu.max_threads / kThreadsPerBlock);
  const uint64_t blocks =
      std::min(most_blocks, (elements + kThreadsPerBlock - 1) / kThreadsPerBlock);
  const uint64_t threads = kThreadsPerBlock * blocks;
  const uint64_t draws = (elements - 1) / (threads * per_draw) + 1;
  return {elements, threads, draws * kWordsPerDraw};
}

/// Calls `store(element, value)` for the elements of threads [begin, end) of a launch. `draw`
/// converts four words to an array of values; the launch was planned for its size. Different
/// threads draw different elements, so ranges of threads can run concurrently.
template <class Draw, class Store>
void run_threads(
    const Launch& launch,
    PhiloxPosition start,
    uint64_t begin,
    uint64_t end,
    Draw draw,
    Store store) {
  const uint64_t per_draw = draw(PhiloxWords{}).size();
  uint64_t first = 0;  // first element of this draw
  for (uint64_t offset = start.offset; first < launch.elements; offset += kWordsPerDraw) {
    const uint64_t last = std::min(end, launch.elements - first);
    for (uint64_t thread = begin; thread < last; ++thread) {
      uint64_t element = first + thread;
      for (const auto value : draw(PhiloxThread({start.seed, offset}, thread).next4())) {
        if (element >= launch.elements) break;
        store(element, value);
        element += launch.threads;
      }
    }
    first += launch.threads * per_draw;
  }
}

/// Runs all threads of a launch in order.
template <class Draw, class Store>
void run_launch(const Launch& launch, PhiloxPosition start, Draw draw, Store store) {
  run_threads(launch, start, 0, launch.threads, draw, store);
}

}  // namespace anyrig::virtual_gpu
