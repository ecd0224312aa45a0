// Private pools, in addition to the two default pools: one for each CUDA graph or group of graphs,
// and for each torch.cuda.MemPool.
//
//   allocate on stream s --> the first route that accepts s --> its private pool
//                       \--> no such route -----------------> the default pools
//
// A pool lives while it has users (graphs, MemPool objects, scopes that allocate to it). After
// that, its free segments are returned to the driver like any others.
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
  bool serves_when_full = false;  // use_on_oom: other requests may use it before memory runs out
  BlockPool small;
  BlockPool large;

  bool is_empty() const { return small.held_bytes == 0 && large.held_bytes == 0; }
  BlockPool& pool_of_size(bool is_small) { return is_small ? small : large; }
};

/// Not thread-safe: its allocator's lock protects it.
class PrivatePools {
 public:
  /// Returns whether a stream's allocations go to a pool.
  using StreamFilter = std::function<bool(StreamKey)>;

  /// Adds a user to the pool, which is created for its first user.
  PrivatePool& add_user(PoolId id) {
    auto& pool = pools_[id];
    if (pool) {
      ++pool->users;
    } else {
      pool = std::make_unique<PrivatePool>(id);
    }
    return *pool;
  }

  /// Removes a user.
  void remove_user(PoolId id) { --at(id).users; }

  /// Routes allocations to the pool for streams for which `accepts` is true. Adds a user, which
  /// `end_route` does not remove. Throws std::logic_error if the pool has a route.
  void begin_route(PoolId id, StreamFilter accepts) {
    for (const auto& route : routes_)
      if (route.first == id)
        throw std::logic_error("beginAllocateToPool: already recording to mempool_id");
    add_user(id);
    routes_.emplace_back(id, std::move(accepts));
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

  /// Returns the pool for allocations of `stream`; null for the default pools.
  PrivatePool* pool_of_stream(StreamKey stream) const {
    for (const auto& [id, accepts] : routes_)
      if (accepts(stream)) return pools_.at(id).get();
    return nullptr;
  }

  /// Returns null if there is no such pool.
  PrivatePool* find(PoolId id) const {
    const auto found = pools_.find(id);
    return found == pools_.end() ? nullptr : found->second.get();
  }
  PrivatePool& at(PoolId id) const {
    PrivatePool* pool = find(id);
    if (!pool) throw std::logic_error("this device has no memory pool with this ID");
    return *pool;
  }

  /// Calls `visit` with every pool.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& entry : pools_) visit(*entry.second);
  }

  /// Calls `empty` with every pool without users (with only pool `id` unless that is kNoPool), then
  /// deletes the empty ones.
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
  std::vector<std::pair<PoolId, StreamFilter>> routes_;
};

}  // namespace anyrig::virtual_gpu
