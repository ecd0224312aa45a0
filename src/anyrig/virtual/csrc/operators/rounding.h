// Rounding of sizes to multiples of a tile.
#pragma once

#include <cstdint>

namespace anyrig::virtual_gpu {

inline int64_t tiles_of(int64_t size, int64_t tile) {
  return (size + tile - 1) / tile;
}

inline int64_t in_whole_tiles(int64_t size, int64_t tile) {
  return tiles_of(size, tile) * tile;
}

} // namespace anyrig::virtual_gpu
