// The random kernels with their own launch configuration: dropout, bernoulli_ with a tensor of
// probabilities, and the last step of randperm.
//
// Source: aten/src/ATen/native/cuda/Dropout.cu, Randperm.cu, Randperm.cuh, DistributionTemplates.h
// and aten/src/ATen/cuda/ApplyGridUtils.cuh, 2.13.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "random/curand_values.h"
#include "random/launch_geometry.h"
#include "random/philox.h"

namespace anyrig::virtual_gpu {

// ---- native_dropout

/// Returns the number of elements that a thread of the dropout kernel loads at once: 16 bytes of
/// them, fewer if `elements` or the input's `address` is not a multiple, and 1 for a tensor that is
/// not dense.
inline int64_t dropout_vector_size(
    int64_t elements,
    size_t element_bytes,
    uint64_t address,
    bool dense) {
  if (!dense) return 1;
  auto size = static_cast<int64_t>(std::min<size_t>(16 / element_bytes, 8));
  const auto fits = [&] {
    const auto bytes = static_cast<uint64_t>(size) * element_bytes;
    return address % bytes == 0 && elements % size == 0;
  };
  while (size > 1 && !fits()) size /= 2;
  return size;
}

inline Launch plan_dropout(uint64_t elements, Multiprocessors gpu) {
  return plan_launch(elements, 4, gpu);
}

/// Calls `store(element, kept)` for every element; `keep_probability` is 1 - p. The comparison is
/// in float for every element type. `element` counts in memory order for a dense tensor, otherwise
/// in index order.
template <class Probability, class Store>
void run_dropout(
    const Launch& launch,
    PhiloxPosition start,
    int64_t vector_size,
    Probability keep_probability,
    Store store) {
  if (vector_size == 1) {
    run_launch(launch, start, draw_uniform4, [&](uint64_t element, float value) {
      store(element, value < keep_probability);
    });
    return;
  }
  const auto width = static_cast<uint64_t>(vector_size);
  const uint64_t draws = (width + 3) / 4;  // a thread of width 2 draws four values and drops two
  uint64_t offset = start.offset;
  for (uint64_t first = 0; first < launch.elements; first += launch.threads * width) {
    for (uint64_t thread = 0; thread < launch.threads; ++thread) {
      const uint64_t element = first + thread * width;
      if (element >= launch.elements) break;
      PhiloxThread words({start.seed, offset}, thread);
      for (uint64_t done = 0; done < width; done += 4) {
        const auto values = draw_uniform4(words.next4());
        for (uint64_t i = 0; i < std::min<uint64_t>(width, 4); ++i)
          store(element + done + i, values[i] < keep_probability);
      }
    }
    offset += draws * kWordsPerDraw;
  }
}

// ---- bernoulli_(tensor)

constexpr uint64_t kBernoulliIncrement = 12;  // requests 10, rounded up to whole counters

/// Calls `store(element, value)` with a uniform value in (0, 1] for every element; the element is 1
/// if the value is at most its probability. Each thread draws for four adjacent elements, and the
/// grid is not limited.
template <class Store>
void run_bernoulli(uint64_t elements, PhiloxPosition start, Store store) {
  for (uint64_t thread = 0; thread * 4 < elements; ++thread) {
    const auto values = draw_uniform4(PhiloxThread(start, thread).next4());
    for (uint64_t i = 0; i < 4 && thread * 4 + i < elements; ++i) store(thread * 4 + i, values[i]);
  }
}

// ---- randperm

/// Returns the number of key bits that randperm sorts by: enough for all keys to differ with a
/// probability of 0.9.
inline int randperm_key_bits(int64_t n) {
  const auto count = static_cast<double>(n);
  const double log_probability_12 = std::log(0.9) * 12;
  const double keys = count - (6 * count * count + 1) / log_probability_12;
  return std::min(64, static_cast<int>(std::ceil(std::log2(keys))));
}

/// Returns the permutation for the keys that random_ drew. Compares the low `bits` of each key, or
/// whole keys as signed numbers. `start` is the position of the kernel that shuffles elements with
/// equal keys, which takes `n` words from the generator even if all keys differ.
template <class Key>
std::vector<int64_t> permutation_of(const std::vector<Key>& keys, int bits, PhiloxPosition start) {
  using Bits = std::make_unsigned_t<Key>;
  constexpr int kKeyBits = static_cast<int>(sizeof(Key) * 8);
  const Bits mask = bits >= kKeyBits ? ~Bits{0} : static_cast<Bits>((Bits{1} << bits) - 1);
  const Bits sign = bits >= kKeyBits ? Bits{1} << (kKeyBits - 1) : Bits{0};
  const auto key_of = [&](int64_t index) {
    return static_cast<Bits>((static_cast<Bits>(keys[static_cast<size_t>(index)]) & mask) ^ sign);
  };
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return key_of(a) < key_of(b); });

  for (size_t first = 0, end; first < order.size(); first = end) {
    for (end = first + 1; end < order.size() && key_of(order[end]) == key_of(order[first]);) ++end;
    // The thread of the first element with this key shuffles all of them (Fisher, Yates).
    PhiloxThread words(start, first);
    for (size_t i = end - first - 1; i > 0; --i)
      std::swap(order[first + i], order[first + words.next() % (i + 1)]);
  }
  return order;
}

} // namespace anyrig::virtual_gpu
