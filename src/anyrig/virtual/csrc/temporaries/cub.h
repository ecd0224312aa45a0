// The temporary memory of CUB's algorithms. PyTorch asks CUB how much a call needs, and allocates that
// from the caching allocator (ATen/cuda/cub.cuh).
//
// Sources: cub/device/dispatch and its folder `tuning`, CCCL 2.8; how CCCL 3.0 differs where an H100
// with PyTorch 2.11 and CUDA 13.0 showed it. Most algorithms divide their input
// into tiles and keep a word for each; the size of a tile depends on the GPU. What CUB asks the driver,
// how many blocks fit on a multiprocessor, is assumed to be limited by its threads alone.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

// The properties of a GPU that CUB's tuning depends on.
struct CubGpu {
  int64_t capability; // 86 is compute capability 8.6
  int64_t multiprocessors;
  int64_t threads; // of one multiprocessor

  // A GPU of unknown type counts as an A100.
  static CubGpu of(c10::DeviceIndex device);
};

struct CubSort {
  int64_t count;
  int64_t key_bytes;
  int64_t value_bytes; // 0: keys alone
  int64_t key_bits = 8 * key_bytes; // that are compared
};

// cub::DeviceRadixSort, called with 64-bit counts.
int64_t radix_sort_bytes(const CubGpu& gpu, const CubSort& sort);

// cub::DeviceSegmentedRadixSort.
int64_t segmented_sort_bytes(const CubSort& sort);

// cub::DeviceScan of `count` elements. `is_primitive` is false for 16-bit floats and complex numbers;
// `is_sum` says whether the operation is CUB's sum, for which it has tunings.
int64_t scan_bytes(
    const CubGpu& gpu,
    int64_t count,
    int64_t element_bytes,
    bool is_primitive,
    bool is_sum);

// cub::DeviceScan::InclusiveSumByKey of 32-bit numbers.
int64_t sum_by_key_bytes(int64_t count);

// cub::DeviceReduce of `count` elements to a 32-bit number.
int64_t reduce_bytes(const CubGpu& gpu, int64_t count);

// cub::DeviceSelect::Flagged of 64-bit positions, and ::Unique of elements.
int64_t select_positions_bytes(const CubGpu& gpu, int64_t count);
int64_t unique_bytes(const CubGpu& gpu, int64_t count, int64_t element_bytes);

// cub::DeviceSelect::UniqueByKey of 32-bit positions, called with a 64-bit count.
int64_t unique_positions_bytes(const CubGpu& gpu, int64_t count, int64_t key_bytes);

// cub::DeviceRunLengthEncode::Encode with 64-bit lengths.
int64_t run_length_bytes(int64_t count);

} // namespace anyrig::virtual_gpu
