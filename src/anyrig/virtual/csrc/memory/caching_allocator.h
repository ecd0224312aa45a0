// A model of PyTorch's CUDA caching allocator that reproduces every byte count. It has no memory
// behind it: blocks are ranges of made-up addresses.
//
//   request --round--> pool of free blocks --best fit--> block --split--> handed out
//                        ^      | none fits                |
//                        |      v                          | freed: merged with free neighbours
//                        |   segment from the driver       | once other streams are done
//                        +---------------------------------+
//
// The rules come from c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h, PyTorch
// 2.13. Not modelled: throw_on_cudamalloc_oom, graph_capture_record_stream_reuse.
//
// Longer than 400 lines because the steps of one request share the lock and the statistics.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "memory/allocation_size.h"
#include "memory/allocator_stats.h"
#include "memory/driver.h"
#include "memory/memory_block.h"
#include "memory/memory_history.h"
#include "memory/out_of_memory.h"
#include "memory/private_pools.h"
#include "memory/segment_snapshot.h"
#include "memory/segments.h"

namespace anyrig::virtual_gpu {

class PoolCheckpoint;

/// The allocator of one device. Safe to call from several threads.
class CachingAllocator {
 public:
  /// Addresses start at `first_address` and are never reused. Devices need first addresses that lie
  /// far apart.
  ///
  /// When no free block fits, the allocator calls `reclaim`, if given, and frees the blocks that it
  /// returns before it asks the driver for memory. It holds its lock then, so `reclaim` must not
  /// call the allocator.
  CachingAllocator(
      Driver& driver,
      StreamEvents& events,
      uint64_t first_address,
      AllocatorOptions options = {},
      std::function<std::vector<Block*>()> reclaim = nullptr)
      : driver_(driver),
        events_(events),
        reclaim_(std::move(reclaim)),
        options_(options),
        segments_(driver, stats_, history_, first_address) {}

  ~CachingAllocator() {
    for (Block* block : active_) delete block;
    for_each_pool([](BlockPool& pool) {
      for (const auto& entry : pool.free) delete entry.block;
      for (Block* block : pool.unmapped) delete block;
    });
  }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns a block of at least `bytes` for work on `stream`, or null for 0 bytes. Throws
  /// OutOfMemory.
  Block* allocate(size_t bytes, StreamKey stream, Context context = nullptr) {
    if (bytes == 0) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    RequestStackScope stack_scope(history_, std::move(context));
    if (bytes >= OutOfMemory::kExabyte) throw out_of_memory(bytes, bytes);
    if (!pools_.has_routes()) process_events();
    const size_t rounded = round_request(bytes, options_);
    const bool small = rounded <= kMaxSmallBytes;
    PrivatePool* own = pools_.pool_of_stream(stream);
    const Request request{
        rounded, segment_bytes(rounded, options_), stream,
        own ? own->pool_of_size(small) : pool_of_size(small)};
    if (failing_ > 0 && --failing_ == 0) {
      ++stats_.num_ooms;
      throw out_of_memory(request.segment_bytes, rounded);
    }
    Block* block = take_free(request);
    if (!block && reclaim()) block = take_free(request);
    if (!block) {
      collect_garbage();
      block = take_new(request);
    }
    if (!block && release_oversize(request)) block = take_new(request);
    if (!block && !pools_.has_routes()) {
      release_cached(kNoPool);
      ++stats_.num_alloc_retries;
      block = take_new(request);
    }
    if (!block && !own) {
      // Fall back on the free blocks of pools with use_on_oom. These pools do not grow.
      for (PrivatePool* pool : pools_when_full()) {
        const Request other{
            request.bytes, request.segment_bytes, stream, pool->pool_of_size(small)};
        block = take_free(other);
        if (block) return hand_out(block, other, bytes);
      }
    }
    if (!block) {
      history_.add(
          TraceAction::kOutOfMemory, driver_.free_bytes(), rounded, stream, request.pool.owner,
          history_.current);
      ++stats_.num_ooms;
      throw out_of_memory(request.segment_bytes, rounded);
    }
    return hand_out(block, request, bytes);
  }

  /// Makes the `number`-th allocation from now fail as if the GPU were full, and none with 0. With
  /// this, tests fail each allocation of a program in turn.
  void fail_allocation(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    failing_ = number;
  }

  /// Returns whether `allocate` would succeed, without changing anything. A false result may be
  /// wrong: freed blocks that other streams still use count only where a whole segment becomes
  /// free.
  bool has_room(size_t bytes, StreamKey stream) {
    if (bytes == 0) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes >= OutOfMemory::kExabyte) return false;
    const size_t rounded = round_request(bytes, options_);
    const bool small = rounded <= kMaxSmallBytes;
    PrivatePool* own = pools_.pool_of_stream(stream);
    const Request request{
        rounded, segment_bytes(rounded, options_), stream,
        own ? own->pool_of_size(small) : pool_of_size(small)};
    if (find_free(request) != request.pool.free.end()) return true;
    const size_t new_bytes = options_.expandable_segments
        ? round_up(rounded, small ? kSmallSegmentBytes : options_.large_segment_bytes)
        : request.segment_bytes;
    const auto fits_with = [&](size_t released) {
      const size_t reserved = segments_.reserved_bytes() - released;
      return (!allowed_bytes_ || reserved + request.segment_bytes <= *allowed_bytes_) &&
          driver_.free_bytes() + released >= new_bytes;
    };
    if (fits_with(0) || (!pools_.has_routes() && fits_with(releasable_bytes()))) return true;
    if (own) return false;
    const auto pools = pools_when_full();
    return std::any_of(pools.begin(), pools.end(), [&](PrivatePool* pool) {
      BlockPool& blocks = pool->pool_of_size(small);
      return find_free({rounded, request.segment_bytes, stream, blocks}) != blocks.free.end();
    });
  }

  /// Frees a block that `allocate` returned. Ignores null.
  void free(Block* block, Context context = nullptr) {
    if (!block) return;
    std::lock_guard<std::mutex> lock(mutex_);
    RequestStackScope stack_scope(history_, std::move(context));
    free_locked(block);
  }

  /// Marks the block as used on `stream`: a later `free` waits for the work queued there at that
  /// time.
  void record_stream(Block* block, StreamKey stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (block && stream != block->stream) block->used_on.insert(stream);
  }

  /// Waits for all streams, then returns every completely free segment to the driver, of the
  /// default pools and of private pools without users. If `pool` is given, of that pool alone.
  void empty_cache(PoolId pool = kNoPool, Context context = nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    RequestStackScope stack_scope(history_, std::move(context));
    release_cached(pool);
  }

  /// Returns (first address, bytes) of the segment that contains a live block.
  std::pair<uint64_t, size_t> segment_of(const Block* block) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (block->expandable) return {block->expandable->address, block->expandable->bytes};
    while (block->prev) block = block->prev;
    const uint64_t first = block->address;
    while (block->next) block = block->next;
    return {first, block->end() - first};
  }

  /// Calls `change` with the private pools. Passes on the exceptions of PrivatePools.
  template <class Change>
  void with_pools(Change change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change(pools_);
  }
  /// Calls `change` with the allocator's history.
  template <class Change>
  void with_history(Change change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change(history_);
  }

  /// Limits this process to `fraction` of the GPU's memory, as set_per_process_memory_fraction.
  void set_memory_fraction(double fraction) {
    std::lock_guard<std::mutex> lock(mutex_);
    allowed_bytes_ = static_cast<size_t>(fraction * static_cast<double>(driver_.total_bytes()));
    is_limited_ = fraction < 1;
  }
  /// Whether a limit below the GPU's memory is set. Does not take the lock.
  bool is_limited() const { return is_limited_; }
  double memory_fraction() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!allowed_bytes_) return 1;
    return static_cast<double>(*allowed_bytes_) / static_cast<double>(driver_.total_bytes());
  }

  void set_options(const AllocatorOptions& options) {
    std::lock_guard<std::mutex> lock(mutex_);
    options_ = options;
  }

  /// Returns the bytes of the blocks handed out, and those taken from the driver.
  std::pair<int64_t, int64_t> current_bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return {
        stats_.allocated_bytes[PoolStat::kAggregate].current,
        stats_.reserved_bytes[PoolStat::kAggregate].current};
  }
  AllocatorStats stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.for_each([](Stat& stat) { stat.reset_peak(); });
  }
  void reset_accumulated() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.for_each([](Stat& stat) { stat.reset_accumulated(); });
    stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
    stats_.num_device_alloc = stats_.num_device_free = 0;
  }

  /// Returns every segment, ordered by address, with one entry for each mapped stretch of an
  /// expandable segment. If `only` is given, returns the segments of that private pool.
  std::vector<SegmentSnapshot> snapshot(PoolId only = kNoPool) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::map<uint64_t, const Block*> heads;
    const auto note = [&heads, only](const Block* block) {
      if (only != kNoPool && block->pool->owner != only) return;
      if (!block->prev || !block->prev->mapped) heads[block->address] = block;
    };
    std::for_each(active_.begin(), active_.end(), note);
    for_each_pool([&](BlockPool& pool) {
      for (const auto& entry : pool.free) note(entry.block);
    });

    std::vector<SegmentSnapshot> segments;
    size_t active_bytes = 0;
    for (const auto& [address, head] : heads) {
      segments.push_back(SegmentSnapshot::from(head));
      active_bytes += segments.back().active_bytes;
    }
    history_.add(TraceAction::kSnapshot, 0, active_bytes, 0, only, nullptr);
    return segments;
  }

 private:
  friend class PoolCheckpoint;

  struct Request {
    size_t bytes;          // the size of the block, after rounding
    size_t segment_bytes;  // requested from the driver when no free block fits
    StreamKey stream;
    BlockPool& pool;
  };

  // ---- pools

  BlockPool& pool_of_size(bool is_small) { return is_small ? small_ : large_; }

  template <class Visit>
  void for_each_pool(Visit visit) {
    visit(large_);
    visit(small_);
    pools_.for_each([&](PrivatePool& pool) {
      visit(pool.large);
      visit(pool.small);
    });
  }

  std::vector<PrivatePool*> pools_when_full() const {
    std::vector<PrivatePool*> pools;
    pools_.for_each([&](PrivatePool& pool) {
      if (pool.serves_when_full) pools.push_back(&pool);
    });
    return pools;
  }

  // ---- finding a block

  bool collects_garbage() const {
    return allowed_bytes_ && options_.garbage_collection_threshold > 0;
  }

  /// Removes the best-fitting free block from its pool and returns it; null when none fits.
  Block* take_free(const Request& request) {
    FreeBlocks& free = request.pool.free;
    if (collects_garbage()) ++request.pool.searches;
    const auto it = find_free(request);
    if (it == free.end()) return nullptr;
    Block* block = it->block;
    request.pool.remove_free(block);
    return block;
  }

  /// Finds the best-fitting free block of the pool; returns end() when none fits.
  FreeBlocks::iterator find_free(const Request& request) const {
    FreeBlocks& free = request.pool.free;
    const auto usable = [&](FreeBlocks::iterator it) {
      return it != free.end() && it->stream == request.stream;
    };
    auto it = free.find_size(request.stream, request.bytes);
    if (!usable(it)) return free.end();
    if (it->block->expandable && options_.expandable_segments) {
      // A free block followed by unmapped addresses counts as the size that it can grow to.
      for (auto next = std::next(it); it->block->expandable && usable(next) &&
           growable_bytes(next->block) < growable_bytes(it->block);
           ++next)
        it = next;
    } else if (it->block->expandable) {  // the option has been turned off since
      do ++it;
      while (usable(it) && it->block->expandable);
      if (!usable(it)) return free.end();
    }
    const Block* block = it->block;
    const bool oversize = request.bytes >= options_.max_split_bytes;
    if (!oversize && block->bytes >= options_.max_split_bytes) return free.end();
    if (oversize && block->bytes >= request.bytes + options_.max_non_split_rounding_bytes)
      return free.end();
    return it;
  }

  static size_t growable_bytes(const Block* block) {
    return block->bytes + (block->next && !block->next->mapped ? block->next->bytes : 0);
  }

  /// Returns a block of new memory from the driver, in no pool; null when the driver has none.
  Block* take_new(const Request& request) {
    if (allowed_bytes_ && segments_.reserved_bytes() + request.segment_bytes > *allowed_bytes_)
      return nullptr;
    if (options_.expandable_segments)
      return segments_.expand(request.pool, request.stream, request.bytes, options_);
    return segments_.create(request.pool, request.stream, request.segment_bytes, options_);
  }

  bool should_split(const Block* block, const Request& request) const {
    const size_t rest_bytes = block->bytes - request.bytes;
    if (request.pool.never_splits) return false;
    if (request.pool.small || options_.expandable_segments) return rest_bytes >= kMinBlockBytes;
    return request.bytes < options_.max_split_bytes && rest_bytes > kMaxSmallBytes;
  }

  /// Splits off the unneeded rest and marks the block as allocated.
  Block* hand_out(Block* block, const Request& request, size_t requested_bytes) {
    BlockPool& pool = request.pool;
    const bool was_split = block->is_split();
    const bool counts_splits = !block->expandable;  // expandable segments can unmap free pages
    if (should_split(block, request)) {
      Block* rest = block;
      block = new Block(&pool, request.stream, rest->address, request.bytes, rest->expandable);
      block->link(rest->prev, rest);
      block->was_used = rest->was_used;
      rest->address += request.bytes;
      rest->bytes -= request.bytes;
      pool.insert_free(rest);
      if (counts_splits && was_split) {
        stats_.inactive_split_bytes.decrease(pool.small, block->bytes);
      } else if (counts_splits) {
        stats_.inactive_split_bytes.increase(pool.small, rest->bytes);
        stats_.inactive_split.increase(pool.small, 1);
      }
    } else if (counts_splits && was_split) {
      stats_.inactive_split_bytes.decrease(pool.small, block->bytes);
      stats_.inactive_split.decrease(pool.small, 1);
    }
    block->allocated = true;
    block->data_address = 0;
    block->requested_bytes = requested_bytes;
    block->context = history_.current;
    block->active_place = active_.size();
    active_.push_back(block);
    history_.add(TraceAction::kAlloc, block, requested_bytes, nullptr);
    stats_.allocation.increase(pool.small, 1);
    stats_.allocated_bytes.increase(pool.small, block->bytes);
    stats_.active.increase(pool.small, 1);
    stats_.active_bytes.increase(pool.small, block->bytes);
    stats_.requested_bytes.increase(pool.small, requested_bytes);
    if (block->bytes >= options_.max_split_bytes) stats_.oversize_allocations.increase(1);
    return block;
  }

  // ---- freeing a block

  /// Frees the blocks that `reclaim_` gives back. Returns whether there were any.
  bool reclaim() {
    if (!reclaim_) return false;
    const std::vector<Block*> blocks = reclaim_();
    for (Block* block : blocks) free_locked(block);
    return !blocks.empty();
  }

  void free_locked(Block* block) {
    block->allocated = false;
    history_.add(TraceAction::kFreeRequested, block, block->requested_bytes, block->context);
    stats_.allocation.decrease(block->pool->small, 1);
    stats_.allocated_bytes.decrease(block->pool->small, block->bytes);
    if (block->bytes >= options_.max_split_bytes) stats_.oversize_allocations.decrease(1);
    if (block->used_on.empty()) return put_back(block);
    // Events cannot be recorded during a capture.
    if (pools_.has_routes()) return deferred_.push_back(block);
    wait_for_streams(block);
  }

  /// Marks a block as free and merges it with its free neighbours.
  void put_back(Block* block) {
    BlockPool& pool = *block->pool;
    history_.add(TraceAction::kFreeCompleted, block, block->requested_bytes, block->context);
    block->context = nullptr;
    stats_.active.decrease(pool.small, 1);
    stats_.active_bytes.decrease(pool.small, block->bytes);
    stats_.requested_bytes.decrease(pool.small, block->requested_bytes);
    active_[block->active_place] = active_.back();
    active_.back()->active_place = block->active_place;
    active_.pop_back();
    block->was_used = true;

    int64_t splits = 0, split_bytes = 0;  // net changes, so that peaks ignore intermediate states
    for (Block* neighbour : {block->prev, block->next}) {
      const size_t gained = merge(block, neighbour);
      splits -= gained > 0;
      split_bytes -= static_cast<int64_t>(gained);
    }
    pool.insert_free(block);
    if (block->is_split()) {
      splits += 1;
      split_bytes += static_cast<int64_t>(block->bytes);
    }
    if (block->expandable) return;
    stats_.inactive_split.change(pool.small, splits);
    stats_.inactive_split_bytes.change(pool.small, split_bytes);
  }

  /// Makes a freed block wait for the work that is now queued on its other streams.
  void wait_for_streams(Block* block) {
    for (StreamKey stream : std::exchange(block->used_on, {})) {
      ++block->pending_events;
      pending_[stream].emplace_back(events_.record(stream), block);
    }
  }

  /// Frees the blocks whose other streams are done. Does not wait.
  void process_events() {
    if (deferred_.empty() && pending_.empty()) return;
    for (Block* block : std::exchange(deferred_, {})) wait_for_streams(block);
    for (auto it = pending_.begin(); it != pending_.end();) {
      auto& [stream, queue] = *it;
      while (!queue.empty() && events_.passed(stream, queue.front().first)) {
        Block* block = queue.front().second;
        queue.pop_front();
        if (--block->pending_events == 0) put_back(block);
      }
      it = queue.empty() ? pending_.erase(it) : std::next(it);
    }
  }

  // ---- returning memory to the driver

  /// Returns all completely free memory to the driver, after a wait for all streams. While
  /// allocations are routed to private pools, a stream may be captured: then does not wait and
  /// leaves the default pools alone. Of private pools, returns those without users, or only `pool`.
  void release_cached(PoolId pool) {
    const bool may_wait = !pools_.has_routes();
    if (pool == kNoPool && may_wait) {
      wait_for_all_streams();
      release_free(large_);
      release_free(small_);
    }
    pools_.empty_unused(pool, [&](PrivatePool& unused) {
      if (pool != kNoPool && may_wait) wait_for_all_streams(pool);
      release_free(unused.small);
      release_free(unused.large);
    });
  }

  /// Waits until the blocks freed so far are free, or those of one pool.
  void wait_for_all_streams(PoolId only = kNoPool) {
    ++stats_.num_sync_all_streams;
    for (Block* block : std::exchange(deferred_, {})) wait_for_streams(block);
    for (auto& [stream, queue] : std::exchange(pending_, {})) {
      for (auto& [mark, block] : queue) {
        if (only != kNoPool && block->pool->owner != only) {
          pending_[stream].emplace_back(mark, block);
          continue;
        }
        events_.wait(stream, mark);
        if (--block->pending_events == 0) put_back(block);
      }
    }
  }

  /// Returns the bytes that `release_cached` would return to the driver: segments, and pages of
  /// expandable segments, in which no block is allocated.
  size_t releasable_bytes() {
    const auto is_idle = [](const Block* block) {
      return block && block->mapped && !block->allocated;
    };
    size_t bytes = 0;
    // Adds a stretch of idle blocks if `first` is its first block.
    const auto add_stretch = [&](const Block* first) {
      const PoolId owner = first->pool->owner;
      const bool is_kept = owner != kNoPool && pools_.at(owner).users > 0;
      if (is_kept || !is_idle(first) || is_idle(first->prev)) return;
      const Block* last = first;
      while (is_idle(last->next)) last = last->next;
      if (!first->expandable) {
        if (!first->prev && !last->next) bytes += last->end() - first->address;
        return;
      }
      const auto [address, _, page_bytes] = *first->expandable;
      const size_t first_page = round_up(first->address - address, page_bytes) / page_bytes;
      const size_t end_page = (last->end() - address) / page_bytes;
      if (first_page < end_page) bytes += (end_page - first_page) * page_bytes;
    };
    std::for_each(active_.begin(), active_.end(), add_stretch);
    for_each_pool([&](BlockPool& pool) {
      for (const auto& entry : pool.free) add_stretch(entry.block);
    });
    return bytes;
  }

  void release_free(BlockPool& pool) {
    for (Block* block : pool.free.blocks()) {
      if (block->expandable) {
        segments_.unmap(block);
      } else if (!block->is_split()) {
        segments_.release(block, options_);
      }
    }
  }

  /// With max_split_size set: releases one free oversize block that is large enough for the
  /// request, or oversize blocks from the largest down until their sum is large enough. Returns
  /// whether enough was released.
  bool release_oversize(const Request& request) {
    if (options_.max_split_bytes == std::numeric_limits<size_t>::max()) return false;
    FreeBlocks& free = request.pool.free;
    const size_t wanted = std::max(request.bytes, options_.max_split_bytes);
    auto it = free.find_size(request.stream, wanted);
    if (it != free.end() && it->stream == request.stream && !it->block->expandable) {
      segments_.release(it->block, options_);
      return true;
    }
    std::vector<Block*> oversize;  // the largest first
    while (it != free.begin() && (--it)->bytes >= options_.max_split_bytes &&
           it->stream == request.stream)
      oversize.push_back(it->block);
    size_t released = 0;
    for (Block* block : oversize) {
      if (released >= wanted) break;
      if (block->expandable) continue;
      released += block->bytes;
      segments_.release(block, options_);
    }
    return released >= wanted;
  }

  /// When reserved memory exceeds the threshold, releases the large segments that have been unused
  /// for at least the average age, and repeats until enough is released.
  void collect_garbage() {
    if (!collects_garbage()) return;
    const auto threshold = static_cast<size_t>(
        options_.garbage_collection_threshold * static_cast<double>(*allowed_bytes_));
    if (segments_.reserved_bytes() <= threshold) return;
    const size_t target = segments_.reserved_bytes() - threshold;
    int64_t total_age = 0, candidates = 0;
    for (const auto& entry : large_.free) {
      if (entry.block->is_split()) continue;
      total_age += large_.age(entry.block);
      ++candidates;
    }
    size_t gained = 0;
    for (bool progress = true; progress && gained < target && candidates > 0;) {
      const double average_age = static_cast<double>(total_age) / static_cast<double>(candidates);
      progress = false;
      for (Block* block : large_.free.blocks()) {
        const int64_t age = large_.age(block);
        if (block->is_split() || block->expandable || static_cast<double>(age) < average_age)
          continue;
        progress = true;
        gained += block->bytes;
        total_age -= age;
        --candidates;
        segments_.release(block, options_);
      }
    }
  }

  OutOfMemory out_of_memory(size_t tried_bytes, size_t rounded_bytes) const {
    OutOfMemory error;
    error.tried_bytes = tried_bytes;
    error.rounded_bytes = rounded_bytes;
    error.total_bytes = driver_.total_bytes();
    error.free_bytes = driver_.free_bytes();
    error.processes = driver_.processes();
    error.allowed_bytes = allowed_bytes_;
    error.allocated_bytes =
        static_cast<size_t>(stats_.allocated_bytes[PoolStat::kAggregate].current);
    error.reserved_bytes = segments_.reserved_bytes();
    const auto count = [&error](const FreeBlocks& free) {
      for (const auto& entry : free) error.private_bytes += entry.bytes;
    };
    pools_.for_each([&](PrivatePool& pool) {
      count(pool.small.free);
      count(pool.large.free);
    });
    return error;
  }

  mutable std::mutex mutex_;
  Driver& driver_;
  StreamEvents& events_;
  const std::function<std::vector<Block*>()> reclaim_;
  AllocatorOptions options_;
  std::optional<size_t> allowed_bytes_;
  int64_t failing_ = 0;  // the allocations up to the one that fails; 0 if none fails
  std::atomic<bool> is_limited_{false};
  AllocatorStats stats_;
  MemoryHistory history_;
  Segments segments_;
  BlockPool small_{true};
  BlockPool large_{false};
  PrivatePools pools_;
  std::vector<Block*> active_;  // unordered: handed out, or still in use by another stream
  std::map<StreamKey, std::deque<std::pair<StreamEvents::Mark, Block*>>> pending_;
  std::vector<Block*> deferred_;  // freed while allocations were routed to private pools
};

}  // namespace anyrig::virtual_gpu
