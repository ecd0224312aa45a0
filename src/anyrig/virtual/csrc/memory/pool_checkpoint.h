// A checkpoint of the blocks that a private pool had handed out, from which the pool can be
// restored:
//
//   checkpoint   | taken | free  | taken |    restoring frees the blocks that are not in the
//   now          | taken     | free      |    checkpoint and hands out its missing blocks again
//
// The graph trees of compiled code restore a checkpoint to capture another graph from there.
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
  // Throws std::logic_error if the allocator has no such pool.
  PoolCheckpoint(CachingAllocator& allocator, PoolId pool);

  // Returns the live blocks of `pool`, by address.
  static std::map<uint64_t, Block*> live_blocks(CachingAllocator& allocator, PoolId pool);

  // Returns the live blocks that are not in the checkpoint with the same address and size.
  std::vector<Block*> blocks_to_free(CachingAllocator& allocator) const;
  // Hands out the blocks of the checkpoint that are free now. Call it after freeing the blocks that
  // `blocks_to_free` returns. Throws std::logic_error if the pool has returned their memory to the
  // driver.
  std::vector<Block*> restore_blocks(CachingAllocator& allocator) const;

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
