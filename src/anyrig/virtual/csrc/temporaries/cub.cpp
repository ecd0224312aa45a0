#include "temporaries/cub.h"

#include "device/device.h"
#include "device/override.h"
#include "random/random_source.h"

#include <algorithm>
#include <initializer_list>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kA100Multiprocessors = 108;
constexpr int64_t kLargestSharedMemory = 48 * 1024;
// From 2.11 on, PyTorch's default build is for CUDA 13, which brings CCCL 3.
constexpr bool kIsCccl3 = ANYRIG_TORCH_FROM(11);

int64_t number_of_parts(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

// AliasTemporaries of cub/util_temporary_storage.cuh: one block of memory for all parts, each
// aligned to 256 bytes, as is the first.
int64_t block_of(std::initializer_list<int64_t> parts) {
  constexpr int64_t kAlignment = 256;
  int64_t bytes = kAlignment - 1;
  for (const int64_t part : parts) {
    bytes += number_of_parts(part, kAlignment) * kAlignment;
  }
  return bytes;
}

// A tuning gives the threads of a block and the items of a thread for elements of 4 bytes.
struct Tuning {
  int64_t threads;
  int64_t items;
};

int64_t threads_that_fit(int64_t threads, int64_t bytes_per_thread) {
  return std::min(threads, number_of_parts(kLargestSharedMemory / bytes_per_thread, 32) * 32);
}

// RegBoundScaling and MemBoundScaling of cub/util_arch.cuh: the items of a tile.
int64_t tile_by_registers(const Tuning& tuning, int64_t element_bytes) {
  const int64_t items =
      std::max<int64_t>(1, tuning.items * 4 / std::max<int64_t>(4, element_bytes));
  return items * threads_that_fit(tuning.threads, element_bytes * items);
}

int64_t tile_by_memory(const Tuning& tuning, int64_t element_bytes) {
  const int64_t items =
      std::max<int64_t>(1, std::min(tuning.items * 4 / element_bytes, tuning.items * 2));
  return items * threads_that_fit(tuning.threads, element_bytes * items);
}

// One word for each tile and for the lanes of a warp.
int64_t tile_words(int64_t count, int64_t tile, int64_t word_bytes) {
  constexpr int64_t kPadding = 32;
  return (number_of_parts(count, tile) + kPadding) * word_bytes;
}

// ScanTileState: a word for each tile, which holds a value and its status. CCCL 3 aligns it as a
// block of its own (tile_state_allocation_size in cub/agent/single_pass_scan_operators.cuh).
int64_t scan_state_bytes(int64_t count, int64_t tile, int64_t value_bytes) {
  const int64_t words = tile_words(count, tile, std::max<int64_t>(4, 2 * value_bytes));
  return kIsCccl3 ? block_of({words}) : words;
}

// Returns the tuning of the one-sweep sort; none where keys are sorted in passes.
Tuning one_sweep_tuning(const CubGpu& gpu, const CubSort& sort) {
  const bool has_values = sort.value_bytes > 0;
  if (gpu.capability >= 90) {
    if (sort.key_bytes >= 8) {
      return {384, sort.value_bytes < 8 ? 30 : 24};
    }
    if (sort.key_bytes == 4) {
      return {384, !has_values ? 19 : sort.value_bytes < 8 ? 17 : 29};
    }
    if (!has_values) {
      return {512, 19};
    }
    return sort.key_bytes == 1 ? Tuning{384, 18} : Tuning{512, 23};
  }
  if (sort.key_bytes < 4) {
    return {0, 0};
  }
  if (gpu.capability >= 80) {
    return {384, sort.key_bytes == 4 && has_values ? 17 : 21};
  }
  if (gpu.capability >= 70) {
    return {256, sort.key_bytes == 4 && sort.value_bytes == 4 ? 46 : 23};
  }
  return {256, gpu.capability == 60 ? 29 : 30};
}

// Sorts by passes over the digits of a key, which count the digits of each block first.
int64_t sort_in_passes_bytes(const CubGpu& gpu, const CubSort& sort) {
  constexpr int64_t kBlocksPerMultiprocessor = 2; // of 512 threads; assumed, not asked
  constexpr int64_t kOversubscription = 5;
  constexpr int64_t kCounterBytes = 8;
  const int64_t digits = sort.key_bytes > 1 ? 128 : 32;
  const int64_t blocks = gpu.multiprocessors * kBlocksPerMultiprocessor * kOversubscription;
  const int64_t counters = blocks * digits + tile_by_memory({512, 23}, kCounterBytes);
  return block_of(
      {counters * kCounterBytes, sort.count * sort.key_bytes, sort.count * sort.value_bytes});
}

} // namespace

CubGpu CubGpu::of(c10::DeviceIndex device) {
  const DeviceFacts& facts = devices()[device];
  const int64_t count = facts.multiprocessors == 0 ? kA100Multiprocessors : facts.multiprocessors;
  return {
      10 * facts.capability_major + facts.capability_minor, count,
      int64_t{anyrig::virtual_gpu::multiprocessors(device).max_threads}};
}

//   up to one tile:  1 byte
//   more:            histograms, look-back state of each tile, a second buffer of keys and of values
//                    if there are several passes, and counters
int64_t radix_sort_bytes(const CubGpu& gpu, const CubSort& sort) {
  constexpr int64_t kDigitBits = 8;
  constexpr int64_t kDigits = int64_t{1} << kDigitBits;
  constexpr int64_t kLargestPortion = (int64_t{1} << 28) - 1;
  const int64_t larger = std::max(sort.key_bytes, sort.value_bytes);
  if (sort.count <= tile_by_registers({256, 19}, larger)) {
    return 1;
  }
  const Tuning tuning = one_sweep_tuning(gpu, sort);
  if (tuning.threads == 0) {
    return sort_in_passes_bytes(gpu, sort);
  }
  const int64_t tile = tile_by_registers(tuning, larger);
  const int64_t portion = kLargestPortion / tile * tile;
  const int64_t portions = number_of_parts(sort.count, portion);
  const int64_t passes = number_of_parts(sort.key_bits, kDigitBits);
  const int64_t buffered = passes > 1 ? sort.count : 0;
  return block_of(
      {portions * passes * kDigits * 8,
       number_of_parts(std::min(sort.count, portion), tile) * kDigits * 4,
       buffered * sort.key_bytes, buffered * sort.value_bytes, portions * passes * 4});
}

int64_t segmented_sort_bytes(const CubSort& sort) {
  return block_of({sort.count * sort.key_bytes, sort.count * sort.value_bytes});
}

int64_t scan_bytes(
    const CubGpu& gpu,
    int64_t count,
    int64_t element_bytes,
    bool is_primitive,
    bool is_sum) {
  Tuning tuning{128, 15};
  if (is_sum && gpu.capability >= 90) {
    tuning = element_bytes >= 8 ? Tuning{224, 24} : Tuning{128, 24};
  } else if (is_sum && (gpu.capability == 80)) {
    tuning = element_bytes >= 8 ? Tuning{288, 22} : Tuning{320, 12};
  }
  const int64_t tile = tile_by_memory(tuning, element_bytes);
  if (is_primitive) {
    return block_of({scan_state_bytes(count, tile, element_bytes)});
  }
  // The status and two values, which are then a block within the block.
  const int64_t values = tile_words(count, tile, element_bytes);
  return block_of({block_of({tile_words(count, tile, 4), values, values})});
}

int64_t sum_by_key_bytes(int64_t count) {
  constexpr int64_t kTile = 128 * 6;
  constexpr int64_t kKeyBytes = 4;
  return block_of({tile_words(count, kTile, 16), (number_of_parts(count, kTile) + 1) * kKeyBytes});
}

int64_t reduce_bytes(const CubGpu& gpu, int64_t count) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kOversubscription = 5;
  if (count <= tile_by_memory({kThreads, 16}, 4)) {
    return 1;
  }
  const int64_t blocks = gpu.multiprocessors * (gpu.threads / kThreads) * kOversubscription;
  return block_of({4 * blocks});
}

int64_t select_positions_bytes(const CubGpu& gpu, int64_t count) {
  const int64_t tile = gpu.capability >= 90 ? 384 * 11 : gpu.capability == 80 ? 384 * 6 : 128 * 5;
  return block_of({scan_state_bytes(count, tile, 4), 0, 0});
}

int64_t unique_bytes(const CubGpu& gpu, int64_t count, int64_t element_bytes) {
  const int64_t by_default = 128 * std::min<int64_t>(10, 10 * 4 / element_bytes);
  int64_t tile = by_default;
  if (gpu.capability >= 90) {
    tile = element_bytes >= 8 ? 384 * 11 : element_bytes == 4 ? 384 * 17 : 256 * 22;
  } else if (gpu.capability == 80) {
    tile = element_bytes >= 8 ? 192 * 10
        : element_bytes == 4  ? 256 * 18
        : element_bytes == 2  ? 576 * 14
                              : 992 * 20;
  }
  return block_of({scan_state_bytes(count, tile, 4), 0, 0});
}

int64_t unique_positions_bytes(const CubGpu& gpu, int64_t count, int64_t key_bytes) {
  const bool is_wide = key_bytes >= 8;
  int64_t tile = 64 * (is_wide ? 5 : 11);
  if (gpu.capability >= 100 && is_wide) {
    tile = 384 * 10;
  } else if (gpu.capability >= 90) {
    tile = is_wide ? 640 * 7 : 512 * 14;
  } else if (gpu.capability == 80) {
    tile = 256 * (is_wide ? 7 : 11);
  }
  return block_of({scan_state_bytes(count, tile, 8), 0});
}

int64_t run_length_bytes(int64_t count) {
  return block_of({tile_words(count, 128 * 6, 16)});
}

} // namespace anyrig::virtual_gpu
