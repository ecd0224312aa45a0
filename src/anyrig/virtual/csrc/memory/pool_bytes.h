// The host bytes of blocks in private pools, which graphs that share a pool share (memory.h).
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace anyrig::virtual_gpu {

// By block address. Addresses are never reused, so the entries of freed bytes are removed from time
// to time. The caller holds the mutex.
struct PoolBytes {
  struct Entry {
    std::weak_ptr<c10::DataPtr> host;
    size_t bytes = 0;
  };

  Entry& at(uint64_t address) {
    if (by_address.size() >= sweep_at) {
      for (auto entry = by_address.begin(); entry != by_address.end();) {
        entry = entry->second.host.expired() ? by_address.erase(entry) : std::next(entry);
      }
      sweep_at = std::max(kMinEntries, 2 * by_address.size());
    }
    return by_address[address];
  }

  static constexpr size_t kMinEntries = 64;
  std::mutex mutex;
  std::unordered_map<uint64_t, Entry> by_address;
  size_t sweep_at = kMinEntries;
};

} // namespace anyrig::virtual_gpu
