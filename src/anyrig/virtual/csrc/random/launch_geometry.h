// Which thread of a CUDA launch draws the number of which element, and what a launch takes from
// the generator. Beyond one wave of threads this depends on the card.
//
// Source: calc_execution_policy and distribution_elementwise_grid_stride_kernel in
// aten/src/ATen/native/cuda/DistributionTemplates.h, 2.13.
#pragma once

#include <algorithm>
#include <cstdint>

#include "random/philox.h"

namespace anyrig::virtual_gpu {

/// What launches depend on: cudaDeviceProp's multiProcessorCount, maxThreadsPerMultiProcessor.
struct Multiprocessors {
  uint32_t count;
  uint32_t max_threads;
};

constexpr uint64_t kThreadsPerBlock = 256;
constexpr uint64_t kWordsPerDraw = 4;  // a thread draws whole counters

struct Launch {
  uint64_t elements;
  uint64_t threads;    // of the whole grid
  uint64_t increment;  // by which the generator's offset moves on
};

/// A launch over `elements` > 0 in which a thread makes `per_draw` values of four words.
///
///   element   0 ........ threads ........ per_draw * threads ........
///             | value 0   | value 1   ... | value 0, next draw
///   thread    0 .. last   0 .. last   ... 0 .. last
inline Launch plan_launch(uint64_t elements, uint64_t per_draw, Multiprocessors card) {
  const uint64_t most_blocks = uint64_t{card.count} * (card.max_threads / kThreadsPerBlock);
  const uint64_t blocks =
      std::min(most_blocks, (elements + kThreadsPerBlock - 1) / kThreadsPerBlock);
  const uint64_t threads = kThreadsPerBlock * blocks;
  const uint64_t draws = (elements - 1) / (threads * per_draw) + 1;
  return {elements, threads, draws * kWordsPerDraw};
}

/// Calls `store(element, value)` for every element that the threads from `begin` to `end` draw of a
/// launch planned for `draw`, which makes an array of values of four words. Other threads' elements
/// are others, so that several stretches can run at once.
template <class Draw, class Store>
void run_threads(const Launch& launch, PhiloxPosition start, uint64_t begin, uint64_t end,
                 Draw draw, Store store) {
  const uint64_t per_draw = draw(PhiloxWords{}).size();
  uint64_t first = 0;  // of the elements of this draw
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

/// All threads of a launch, one after another.
template <class Draw, class Store>
void run_launch(const Launch& launch, PhiloxPosition start, Draw draw, Store store) {
  run_threads(launch, start, 0, launch.threads, draw, store);
}

}  // namespace anyrig::virtual_gpu
