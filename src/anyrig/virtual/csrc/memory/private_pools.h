// Pools of blocks beside the two that serve everybody: one for each CUDA graph, or group of
// graphs, and for each torch.cuda.MemPool.
//
//   allocate on stream s --> the first route that takes s? --> its private pool
//                       \--> none does -----------------> the pools for everybody
//
// A pool lives while it has users (graphs, MemPool objects, scopes that allocate to it). After
// that its segments go back to the driver like any others, once they are free.
//
// Source: PrivatePool, get_pool and the functions of the same names in
// c10/cuda/CUDACachingAllocator.cpp, 2.13.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory/memory_block.h"

namespace anyrig::virtual_gpu {

struct PrivatePool {
  explicit PrivatePool(PoolId id) : small(true, id), large(false, id) {}

  int users = 1;
  bool serves_when_full = false;  // may be used by all before memory runs out
  BlockPool small;
  BlockPool large;

  bool is_empty() const { return small.held_bytes == 0 && large.held_bytes == 0; }
  BlockPool& of_size(bool is_small) { return is_small ? small : large; }
};

/// Not locked: belongs to one allocator.
class PrivatePools {
 public:
  /// Says of a stream whether its allocations are to go to a pool.
  using Takes = std::function<bool(StreamKey)>;

  /// Adds a user; makes the pool for the first one.
  PrivatePool& use(PoolId id) {
    auto& pool = pools_[id];
    if (pool) {
      ++pool->users;
    } else {
      pool = std::make_unique<PrivatePool>(id);
    }
    return *pool;
  }

  /// Takes a user away.
  void release(PoolId id) { --at(id).users; }

  /// Sends allocations of the streams that `takes` says to the pool, which gets a user.
  void begin_route(PoolId id, Takes takes) {
    for (const auto& route : routes_)
      if (route.first == id)
        throw std::logic_error("beginAllocateToPool: already recording to mempool_id");
    use(id);
    routes_.emplace_back(id, std::move(takes));
  }
  void end_route(PoolId id) {
    for (auto it = routes_.begin(); it != routes_.end(); ++it) {
      if (it->first != id) continue;
      routes_.erase(it);
      return;
    }
    throw std::logic_error("endAllocatePool: not currently recording to mempool_id");
  }
  bool has_routes() const { return !routes_.empty(); }

  /// The pool that allocations of `stream` go to; null for the pools of everybody.
  PrivatePool* of_stream(StreamKey stream) const {
    for (const auto& [id, takes] : routes_)
      if (takes(stream)) return pools_.at(id).get();
    return nullptr;
  }

  /// Null when there is none of this name.
  PrivatePool* find(PoolId id) const {
    const auto found = pools_.find(id);
    return found == pools_.end() ? nullptr : found->second.get();
  }
  PrivatePool& at(PoolId id) const {
    PrivatePool* pool = find(id);
    if (!pool) throw std::logic_error("there is no memory pool of this id on this device");
    return *pool;
  }

  /// Calls `visit` with every pool.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& entry : pools_) visit(*entry.second);
  }

  /// Calls `empty` with every pool without users (only `id`, if that is not kNoPool) and drops
  /// those that hold nothing then.
  template <class Empty>
  void empty_unused(PoolId id, Empty empty) {
    for (auto it = pools_.begin(); it != pools_.end();) {
      PrivatePool& pool = *it->second;
      if (pool.users > 0 || (id != kNoPool && it->first != id)) {
        ++it;
        continue;
      }
      empty(pool);
      it = pool.is_empty() ? pools_.erase(it) : std::next(it);
    }
  }

 private:
  std::map<PoolId, std::unique_ptr<PrivatePool>> pools_;
  std::vector<std::pair<PoolId, Takes>> routes_;
};

}  // namespace anyrig::virtual_gpu
