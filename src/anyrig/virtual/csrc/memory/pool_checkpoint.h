// Which blocks of a private pool were handed out at some moment, and the pool made so again:
//
//   then   | taken | free  | taken |        restore: frees the first, hands out the others again,
//   now    | taken     | free      |                 at their addresses
//
// The graph trees of compiled code go back to such a moment, to capture another graph from there.
//
// Source: getCheckpointState and setCheckpointPoolState in c10/cuda/CUDACachingAllocator.cpp and
// torch/csrc/cuda/Module.cpp, 2.13.
#pragma once

#include "memory/caching_allocator.h"

#include <functional>
#include <map>
#include <set>
#include <vector>

namespace anyrig::virtual_gpu {

class PoolCheckpoint {
 public:
  // Throws std::logic_error if there is no such pool.
  PoolCheckpoint(CachingAllocator& allocator, PoolId pool);

  // The live blocks of `pool`, by address.
  static std::map<uint64_t, Block*> live_blocks(CachingAllocator& allocator, PoolId pool);

  // Live blocks that were not handed out then, or not like that.
  std::vector<Block*> to_free(CachingAllocator& allocator) const;
  // Hands out again what was handed out then and is free now, once the blocks `to_free` are freed.
  // Throws std::logic_error if the pool has lost a segment since.
  std::vector<Block*> hand_out_again(CachingAllocator& allocator) const;

 private:
  struct Part {
    uint64_t address;
    size_t bytes, requested_bytes;
  };

  static Block* carve(CachingAllocator& allocator, BlockPool& pool, const Part& part);

  PoolId pool_;
  std::vector<Part> taken_;
};

} // namespace anyrig::virtual_gpu
