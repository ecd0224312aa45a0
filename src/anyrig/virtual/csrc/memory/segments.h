// The memory that an allocator has obtained from the driver: fixed segments, and expandable ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory/allocation_size.h"
#include "memory/allocator_stats.h"
#include "memory/driver.h"
#include "memory/memory_block.h"
#include "memory/memory_history.h"

namespace anyrig::virtual_gpu {

/// Not thread-safe: its allocator's lock protects it. Updates the allocator's statistics.
class Segments {
 public:
  Segments(Driver& driver, AllocatorStats& stats, MemoryHistory& history, uint64_t first_address)
      : driver_(driver), stats_(stats), history_(history), next_address_(first_address) {}

  size_t reserved_bytes() const {
    return static_cast<size_t>(stats_.reserved_bytes[PoolStat::kAggregate].current);
  }

  /// Creates a segment and returns it as one block, in no pool; null when the driver has no memory.
  Block* create(BlockPool& pool, StreamKey stream, size_t bytes, const AllocatorOptions& options) {
    if (!driver_.reserve(bytes)) return nullptr;
    stats_.segment.increase(pool.small, 1);
    stats_.reserved_bytes.increase(pool.small, bytes);
    if (bytes >= options.max_split_bytes) stats_.oversize_segments.increase(1);
    ++stats_.num_device_alloc;
    pool.held_bytes += bytes;
    Block* block = new Block(&pool, stream, take_addresses(bytes), bytes);
    block->segment_context = history_.current;
    history_.add(TraceAction::kSegmentAlloc, block, bytes, nullptr);
    return block;
  }

  /// Returns a free block that spans a whole segment to the driver.
  void release(Block* block, const AllocatorOptions& options) {
    BlockPool& pool = *block->pool;
    pool.remove_free(block);
    pool.held_bytes -= block->bytes;
    history_.add(TraceAction::kSegmentFree, block, block->bytes, block->segment_context);
    driver_.release(block->bytes);
    stats_.segment.decrease(pool.small, 1);
    stats_.reserved_bytes.decrease(pool.small, block->bytes);
    if (block->bytes >= options.max_split_bytes) stats_.oversize_segments.decrease(1);
    ++stats_.num_device_free;
    delete block;
  }

  // An expandable segment is a range of addresses for one pool and stream, to which memory is
  // mapped page by page:
  //
  //   | allocated | free | allocated | free |  unmapped ...                      |
  //   +-- page ---+-- page ---+-- page -----+

  /// Returns a free block of at least `bytes`, in no pool, at the lowest address with room for it,
  /// after mapping the missing pages. Returns null when the driver has no memory for them.
  Block* expand(BlockPool& pool, StreamKey stream, size_t bytes, const AllocatorOptions& options) {
    Block* block = find_room(pool, stream, bytes);
    if (!block) block = create_expandable(pool, stream, options);
    if (!block->mapped && !map(block, std::min(block->bytes, bytes))) return nullptr;
    while (block->bytes < bytes) {
      Block* addresses = block->next; // unmapped, since a mapped free block would have been merged
      if (!map(addresses, std::min(addresses->bytes, bytes - block->bytes))) return nullptr;
      block = addresses; // now includes the block before it
    }
    pool.remove_free(block);
    return block;
  }

  /// Unmaps the whole pages inside a free block. Deletes the segment when nothing is mapped any
  /// more.
  void unmap(Block* block) {
    BlockPool& pool = *block->pool;
    ExpandableSegment& segment = *block->expandable;
    const uint64_t first_page =
        (block->address - segment.address + segment.page_bytes - 1) / segment.page_bytes;
    const uint64_t end_page = (block->end() - segment.address) / segment.page_bytes;
    if (first_page >= end_page) return;
    const uint64_t begin = segment.address + first_page * segment.page_bytes;
    const uint64_t end = segment.address + end_page * segment.page_bytes;
    pool.remove_free(block);
    if (block->address < begin) {
      Block* before =
          new Block(&pool, block->stream, block->address, begin - block->address, &segment);
      before->link(block->prev, block);
      pool.insert_free(before);
    }
    if (end < block->end()) {
      Block* after = new Block(&pool, block->stream, end, block->end() - end, &segment);
      after->link(block, block->next);
      pool.insert_free(after);
    }
    block->address = begin;
    block->bytes = end - begin;
    block->mapped = false;
    pool.held_bytes -= end - begin;
    history_.add(TraceAction::kSegmentUnmap, block, end - begin, block->segment_context);
    driver_.release(end - begin);
    stats_.reserved_bytes.decrease(pool.small, end - begin);
    ++stats_.num_device_free;
    merge(block, block->prev);
    merge(block, block->next);
    if (block->is_split()) {
      pool.unmapped.insert(block);
    } else {
      delete block;
      expandable_.erase(
          std::find_if(expandable_.begin(), expandable_.end(), [&](const auto& owned) {
            return owned.get() == &segment;
          }));
    }
  }

 private:
  uint64_t take_addresses(size_t bytes) {
    return std::exchange(next_address_, next_address_ + bytes);
  }

  /// Returns the first block of a sufficiently large stretch of free or unmapped blocks; null if
  /// none.
  static Block* find_room(BlockPool& pool, StreamKey stream, size_t bytes) {
    Block key(&pool, stream, 0, 0);
    for (auto it = pool.unmapped.lower_bound(&key);
         it != pool.unmapped.end() && (*it)->stream == stream; ++it) {
      Block* first = (*it)->prev && (*it)->prev->is_free() ? (*it)->prev : *it;
      size_t room = 0;
      for (const Block* b = first; b && b->is_free() && room < bytes; b = b->next) room += b->bytes;
      if (room >= bytes) return first;
    }
    return nullptr;
  }

  /// Reserves addresses for 9/8 of the GPU's memory, so that pages unmapped in the middle can be
  /// mapped again at the end.
  Block* create_expandable(BlockPool& pool, StreamKey stream, const AllocatorOptions& options) {
    const size_t page_bytes = pool.small ? kSmallSegmentBytes : options.large_segment_bytes;
    const size_t bytes = round_up(driver_.total_bytes() + driver_.total_bytes() / 8, page_bytes);
    expandable_.push_back(
        std::make_unique<ExpandableSegment>(
            ExpandableSegment{take_addresses(bytes), bytes, page_bytes}));
    ExpandableSegment* segment = expandable_.back().get();
    Block* block = new Block(&pool, stream, segment->address, bytes, segment);
    block->mapped = false;
    pool.unmapped.insert(block);
    return block;
  }

  /// Maps pages for the first `bytes` of an unmapped block, turns them into a free block and merges
  /// it with its neighbours. Returns false when the driver has no memory.
  bool map(Block* block, size_t bytes) {
    BlockPool& pool = *block->pool;
    const size_t mapped_bytes = round_up(bytes, block->expandable->page_bytes);
    if (!driver_.reserve(mapped_bytes)) return false;
    pool.unmapped.erase(block);
    if (mapped_bytes < block->bytes) {
      Block* rest = new Block(
          &pool, block->stream, block->address + mapped_bytes, block->bytes - mapped_bytes,
          block->expandable);
      rest->mapped = false;
      rest->link(block, block->next);
      pool.unmapped.insert(rest);
      block->bytes = mapped_bytes;
    }
    block->mapped = true;
    pool.held_bytes += mapped_bytes;
    history_.add(TraceAction::kSegmentMap, block, mapped_bytes, nullptr);
    merge(block, block->prev);
    merge(block, block->next);
    pool.insert_free(block);
    stats_.reserved_bytes.increase(pool.small, mapped_bytes);
    ++stats_.num_device_alloc;
    return true;
  }

  Driver& driver_;
  AllocatorStats& stats_;
  MemoryHistory& history_;
  uint64_t next_address_;
  std::vector<std::unique_ptr<ExpandableSegment>> expandable_;
};

} // namespace anyrig::virtual_gpu
