#include "memory/pool_checkpoint.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

namespace anyrig::virtual_gpu {

PoolCheckpoint::PoolCheckpoint(CachingAllocator& allocator, PoolId pool) : pool_(pool) {
  allocator.with_pools([pool](const PrivatePools& pools) { pools.at(pool); });
  for (const auto& [address, block] : live_blocks(allocator, pool)) {
    taken_.push_back({address, block->bytes, block->requested_bytes});
  }
}

std::map<uint64_t, Block*> PoolCheckpoint::live_blocks(CachingAllocator& allocator, PoolId pool) {
  std::map<uint64_t, Block*> blocks;
  std::lock_guard<std::mutex> lock(allocator.mutex_);
  for (Block* block : allocator.active_) {
    if (block->allocated && block->pool->owner == pool) {
      blocks[block->address] = block;
    }
  }
  return blocks;
}

std::vector<Block*> PoolCheckpoint::blocks_to_free(CachingAllocator& allocator) const {
  std::vector<Block*> blocks;
  for (const auto& [address, block] : live_blocks(allocator, pool_)) {
    const bool stays = std::any_of(taken_.begin(), taken_.end(), [block = block](const Part& part) {
      return part.address == block->address && part.bytes == block->bytes;
    });
    if (!stays) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

std::vector<Block*> PoolCheckpoint::restore_blocks(CachingAllocator& allocator) const {
  const auto live = live_blocks(allocator, pool_);
  std::vector<Block*> blocks;
  std::lock_guard<std::mutex> lock(allocator.mutex_);
  PrivatePool& pool = allocator.pools_.at(pool_);
  for (const Part& part : taken_) {
    if (live.count(part.address) > 0) {
      continue;
    }
    Block* block = carve(allocator, pool.small, part);
    if (block == nullptr) {
      block = carve(allocator, pool.large, part);
    }
    if (block == nullptr) {
      throw std::logic_error(
          "the memory pool has returned memory to the GPU since its state was saved");
    }
    blocks.push_back(block);
  }
  return blocks;
}

Block* PoolCheckpoint::carve(CachingAllocator& allocator, BlockPool& pool, const Part& part) {
  const auto found = std::find_if(pool.free.begin(), pool.free.end(), [&part](const auto& entry) {
    return entry.address <= part.address &&
        part.address + part.bytes <= entry.address + entry.bytes;
  });
  if (found == pool.free.end()) {
    return nullptr;
  }
  Block* block = found->block;
  pool.remove_free(block);
  // Free parts of a segment are counted in the statistics; `hand_out` takes `block` out of them.
  const auto count = [&](const Block* free, int64_t sign) {
    if (free->expandable == nullptr && free->is_split()) {
      allocator.stats_.inactive_split.change(pool.small, sign);
      allocator.stats_.inactive_split_bytes.change(
          pool.small, sign * static_cast<int64_t>(free->bytes));
    }
  };
  count(block, -1);
  const auto leave_free = [&](uint64_t address, uint64_t end, Block* before, Block* after) {
    auto* rest = new Block(&pool, block->stream, address, end - address, block->expandable);
    rest->was_used = block->was_used;
    rest->link(before, after);
    pool.insert_free(rest);
    count(rest, 1);
    return rest;
  };
  if (block->address < part.address) {
    Block* before = leave_free(block->address, part.address, block->prev, block);
    before->segment_context = std::move(block->segment_context);
  }
  if (part.address + part.bytes < block->end()) {
    leave_free(part.address + part.bytes, block->end(), block, block->next);
  }
  block->address = part.address;
  block->bytes = part.bytes;
  block->was_used = true;
  count(block, 1);
  // The request has the block's size, so `hand_out` does not split the block.
  return allocator.hand_out(
      block, {part.bytes, part.bytes, block->stream, pool}, part.requested_bytes);
}

} // namespace anyrig::virtual_gpu
