// The pieces a segment of device memory is cut into, and the pools that keep the free ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

namespace anyrig::virtual_gpu {

using StreamKey = int64_t;
using PoolId = std::pair<uint64_t, uint64_t>;  // c10::MempoolId_t
constexpr PoolId kNoPool{0, 0};                // the pools of everybody
using Context = std::shared_ptr<void>;         // a stack, or null; what it is, the caller knows
struct BlockPool;

/// A range of addresses that memory is mapped into page by page, as it is needed.
struct ExpandableSegment {
  uint64_t address;
  size_t bytes;
  size_t page_bytes;
};

/// Part of a segment: handed out, free, or (in an expandable segment) addresses without memory.
struct Block {
  Block(BlockPool* pool, StreamKey stream, uint64_t address, size_t bytes,
        ExpandableSegment* expandable = nullptr)
      : pool(pool), stream(stream), address(address), bytes(bytes), expandable(expandable) {}

  BlockPool* pool;
  StreamKey stream;  // the stream it was allocated for
  uint64_t address;
  size_t bytes;
  ExpandableSegment* expandable;
  size_t requested_bytes = 0;
  // Where its tensors find their bytes: what data_ptr() returns. 0 until its storage is made.
  std::atomic<uint64_t> data_address{0};
  bool allocated = false;
  bool mapped = true;
  bool was_used = false;  // some of it was handed out before, since the driver gave the segment
  Block* prev = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  std::set<StreamKey> used_on;  // streams of record_stream, until the block is freed
  size_t active_place = 0;      // in the list of blocks that are in use
  int pending_events = 0;       // those streams' events that have not been seen complete
  int64_t pool_searches = 0;    // BlockPool::searches when the block entered the pool
  Context context;              // of the request it was handed out for
  Context segment_context;      // of the request that its segment was made for, in its first block

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool is_free() const { return !allocated && pending_events == 0 && used_on.empty(); }
  uint64_t end() const { return address + bytes; }

  /// Takes its place between two neighbours, either of which may be null.
  void link(Block* before, Block* after) {
    prev = before;
    next = after;
    if (before) before->next = this;
    if (after) after->prev = this;
  }
};

/// Best fit: the smallest first. Of equal ones, the block of the segment that was asked of the
/// driver first (PyTorch 2.13), then the lowest; addresses here rise in the order of asking, so
/// that both are one comparison, and the older rule (by address alone) gives the same.
struct BySizeThenAddress {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

using FreeBlocks = std::set<Block*, BySizeThenAddress>;

struct BlockPool {
  explicit BlockPool(bool is_small, PoolId owner = kNoPool) : small(is_small), owner(owner) {}

  const bool small;
  const PoolId owner;     // the private pool it is part of
  bool never_splits = false;
  size_t held_bytes = 0;  // of its segments
  FreeBlocks free;
  std::set<Block*, ByAddress> unmapped;  // address space of expandable segments
  int64_t searches = 0;                  // counts only while garbage collection is on

  void insert_free(Block* block) {
    block->pool_searches = searches;
    free.insert(block);
  }
  int64_t age(const Block* block) const { return searches - block->pool_searches; }
};

/// Lets `block`, which is in no pool, swallow a neighbour if that is free and mapped alike.
/// Returns the bytes gained.
inline size_t merge(Block* block, Block* neighbour) {
  if (!neighbour || !neighbour->is_free() || neighbour->mapped != block->mapped) return 0;
  if (neighbour->mapped) {
    neighbour->pool->free.erase(neighbour);
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

}  // namespace anyrig::virtual_gpu
