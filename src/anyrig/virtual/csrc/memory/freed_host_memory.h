// Host memory of small freed blocks, so that a block that is handed out again has the data pointer
// it had. Programs that test whether record_stream held memory back compare data pointers.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace anyrig::virtual_gpu {

class FreedHostMemory {
 public:
  // Keeps `host`, the `bytes` behind the block at `address`, until that is handed out again; large
  // pieces go back to the host at once.
  void keep(uint64_t address, size_t bytes, c10::DataPtr host) {
    if (bytes > kLargestBytes || host.get() == nullptr) {
      return;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    if (kept_.size() >= kMostPieces) {
      kept_.clear();
    }
    kept_[address] = {bytes, std::move(host)};
  }

  // What was kept for the block at `address`; nothing if that is not of `bytes`.
  c10::DataPtr take(uint64_t address, size_t bytes) {
    if (bytes > kLargestBytes) {
      return {};
    }
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = kept_.find(address);
    if (found == kept_.end()) {
      return {};
    }
    auto [size, host] = std::move(found->second);
    kept_.erase(found);
    return size == bytes ? std::move(host) : c10::DataPtr();
  }

 private:
  static constexpr size_t kLargestBytes = 4096;
  static constexpr size_t kMostPieces = 1024; // 4 MiB at most

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::pair<size_t, c10::DataPtr>> kept_;
};

} // namespace anyrig::virtual_gpu
