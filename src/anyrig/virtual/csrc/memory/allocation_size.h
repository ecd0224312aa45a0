// How many bytes a request takes, and how many are asked of the driver for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace anyrig::virtual_gpu {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMinBlockBytes = 512;           // every block is a multiple of it
constexpr size_t kMaxSmallBytes = 1 * kMiB;      // the largest block of the small pool
constexpr size_t kSmallSegmentBytes = 2 * kMiB;  // the segments of the small pool
constexpr size_t kMinOwnSegmentBytes = 10 * kMiB;  // from here a block gets a segment of its size
constexpr size_t kOwnSegmentUnitBytes = 2 * kMiB;  // rounded up to a multiple of this

/// The settings of PYTORCH_ALLOC_CONF that change numbers, with PyTorch's defaults.
struct AllocatorOptions {
  bool expandable_segments = false;
  size_t large_segment_bytes = 20 * kMiB;
  size_t max_split_bytes = std::numeric_limits<size_t>::max();
  size_t max_non_split_rounding_bytes = 20 * kMiB;
  double garbage_collection_threshold = 0;
  /// For sizes under 2 MiB, under 4 MiB, and so on to 32 GiB and more; 0 and 1 are none.
  std::array<size_t, 16> roundup_power2_divisions{};
};

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

inline int log2_floor(size_t value) {
  int log = 0;
  while (value >>= 1) ++log;
  return log;
}

/// The size of the block for a request of one byte or more.
inline size_t round_request(size_t bytes, const AllocatorOptions& options) {
  const int interval = std::clamp(log2_floor(bytes) - log2_floor(kMiB), 0, 15);
  const size_t divisions = options.roundup_power2_divisions[static_cast<size_t>(interval)];
  if (divisions > 1 && bytes > kMinBlockBytes * divisions) {
    // Up to the next of `divisions` equal steps between two powers of 2.
    return round_up(bytes, (size_t{1} << log2_floor(bytes)) >> log2_floor(divisions));
  }
  return round_up(bytes, kMinBlockBytes);
}

/// The segment that a block of `rounded` bytes is cut from when no free block fits.
inline size_t segment_bytes(size_t rounded, const AllocatorOptions& options) {
  if (rounded <= kMaxSmallBytes) return kSmallSegmentBytes;
  if (rounded < kMinOwnSegmentBytes) return options.large_segment_bytes;
  return round_up(rounded, kOwnSegmentUnitBytes);
}

}  // namespace anyrig::virtual_gpu
