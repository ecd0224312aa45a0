// Rounding rules: the block size of a request, and the size of the segment asked of the driver.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace anyrig::virtual_gpu {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMinBlockBytes = 512;           // every block is a multiple of this
constexpr size_t kMaxSmallBytes = 1 * kMiB;      // the largest block of the small pool
constexpr size_t kSmallSegmentBytes = 2 * kMiB;  // the segments of the small pool
constexpr size_t kMinOwnSegmentBytes = 10 * kMiB;  // from here a block has its own segment
constexpr size_t kOwnSegmentUnitBytes = 2 * kMiB;  // whose size is a multiple of this

/// The settings of PYTORCH_ALLOC_CONF that affect sizes, with PyTorch's defaults.
struct AllocatorOptions {
  bool expandable_segments = false;
  size_t large_segment_bytes = 20 * kMiB;
  size_t max_split_bytes = std::numeric_limits<size_t>::max();
  size_t max_non_split_rounding_bytes = 20 * kMiB;
  double garbage_collection_threshold = 0;
  /// By size: [0] below 2 MiB, [1] below 4 MiB, ..., [15] from 32 GiB. 0 and 1 mean no divisions.
  std::array<size_t, 16> roundup_power2_divisions{};
};

inline size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

inline int log2_floor(size_t value) {
  int log = 0;
  while (value >>= 1) ++log;
  return log;
}

/// Returns the block size for a request of `bytes` > 0.
inline size_t round_request(size_t bytes, const AllocatorOptions& options) {
  const int interval = std::clamp(log2_floor(bytes) - log2_floor(kMiB), 0, 15);
  const size_t divisions = options.roundup_power2_divisions[static_cast<size_t>(interval)];
  if (divisions > 1 && bytes > kMinBlockBytes * divisions) {
    // Round up to one of `divisions` equal steps between two powers of 2.
    return round_up(bytes, (size_t{1} << log2_floor(bytes)) >> log2_floor(divisions));
  }
  return round_up(bytes, kMinBlockBytes);
}

/// Returns the size of the segment to create for a block of `rounded` bytes when no free block
/// fits.
inline size_t segment_bytes(size_t rounded, const AllocatorOptions& options) {
  if (rounded <= kMaxSmallBytes) return kSmallSegmentBytes;
  if (rounded < kMinOwnSegmentBytes) return options.large_segment_bytes;
  return round_up(rounded, kOwnSegmentUnitBytes);
}

}  // namespace anyrig::virtual_gpu
