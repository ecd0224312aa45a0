// Blocks, which divide a segment of device memory, and the pools that hold the free ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "memory/free_blocks.h"

namespace anyrig::virtual_gpu {

using PoolId = std::pair<uint64_t, uint64_t>;  // c10::MempoolId_t
constexpr PoolId kNoPool{0, 0};                // the default pools
using Context = std::shared_ptr<void>;         // a recorded stack, or null; opaque here
struct BlockPool;

/// A range of addresses to which pages of memory are mapped as needed.
struct ExpandableSegment {
  uint64_t address;
  size_t bytes;
  size_t page_bytes;
};

/// Part of a segment: handed out, free, or (in an expandable segment) unmapped addresses.
struct Block {
  Block(
      BlockPool* pool,
      StreamKey stream,
      uint64_t address,
      size_t bytes,
      ExpandableSegment* expandable = nullptr)
      : pool(pool), stream(stream), address(address), bytes(bytes), expandable(expandable) {}

  BlockPool* pool;
  StreamKey stream;  // the stream that it was allocated for
  uint64_t address;
  size_t bytes;
  ExpandableSegment* expandable;
  size_t requested_bytes = 0;
  // Where its tensors find their bytes: what data_ptr() returns. 0 until its storage is made.
  std::atomic<uint64_t> data_address{0};
  bool allocated = false;
  bool mapped = true;
  bool was_used = false;  // part of it was handed out since its segment was created
  Block* prev = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  std::set<StreamKey> used_on;  // streams of record_stream, until the block is freed
  size_t active_place = 0;      // index in the list of active blocks
  int pending_events = 0;       // events of used_on that are not yet complete
  int64_t pool_searches = 0;    // BlockPool::searches when the block entered the pool
  Context context;              // of the request it was handed out for
  // Where the program made it, numbered as in time/origin.h; owned by block_origins.cpp.
  int32_t line = -1;
  int32_t module = -1;
  int32_t backward_passes = 0;  // begun until then
  bool in_grad_mode = false;
  bool is_workspace = false;
  Context
      segment_context; // of the request that created the segment; a split leaves it with the rest

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool is_free() const { return !allocated && pending_events == 0 && used_on.empty(); }
  uint64_t end() const { return address + bytes; }

  /// Inserts the block between two neighbours, either of which may be null.
  void link(Block* before, Block* after) {
    prev = before;
    next = after;
    if (before) before->next = this;
    if (after) after->prev = this;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

struct BlockPool {
  explicit BlockPool(bool is_small, PoolId owner = kNoPool) : small(is_small), owner(owner) {}

  const bool small;
  const PoolId owner; // the private pool that this is part of
  bool never_splits = false;
  size_t held_bytes = 0; // the sum of its segments
  FreeBlocks free;
  std::set<Block*, ByAddress> unmapped; // unmapped addresses of expandable segments
  int64_t searches = 0; // counted only while garbage collection is on

  void insert_free(Block* block) {
    block->pool_searches = searches;
    free.insert({block->stream, block->bytes, block->address, block});
  }
  void remove_free(Block* block) {
    free.erase({block->stream, block->bytes, block->address, block});
  }
  int64_t age(const Block* block) const { return searches - block->pool_searches; }
};

/// Merges `block`, which is in no pool, with a neighbour that is free and in the same mapping
/// state. Returns the bytes gained, or 0.
inline size_t merge(Block* block, Block* neighbour) {
  if (!neighbour || !neighbour->is_free() || neighbour->mapped != block->mapped) return 0;
  if (neighbour->mapped) {
    neighbour->pool->remove_free(neighbour);
  } else {
    neighbour->pool->unmapped.erase(neighbour);
  }
  if (neighbour == block->prev) {
    block->address = neighbour->address;
    block->segment_context = std::move(neighbour->segment_context);
    block->link(neighbour->prev, block->next);
  } else {
    block->link(block->prev, neighbour->next);
  }
  block->was_used |= neighbour->was_used;
  const size_t gained = neighbour->bytes;
  block->bytes += gained;
  delete neighbour;
  return gained;
}

} // namespace anyrig::virtual_gpu
