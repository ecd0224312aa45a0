// A cache of the host memory of small freed blocks: a block that is handed out again keeps its data
// pointer. Programs that test whether record_stream delayed reuse compare data pointers.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace anyrig::virtual_gpu {

class FreedHostMemory {
 public:
  // Keeps `host`, the `bytes` behind the block at `address`, until `take` or until another block
  // needs the same slot. Ignores large blocks.
  void keep(uint64_t address, size_t bytes, c10::DataPtr host) {
    if (bytes > kLargestBytes || host.get() == nullptr) {
      return;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    place_of(address) = {address, bytes, std::move(host)};
  }

  // Returns the host memory kept for the block at `address`; null if there is none of `bytes`.
  c10::DataPtr take(uint64_t address, size_t bytes) {
    if (bytes > kLargestBytes) {
      return {};
    }
    std::lock_guard<std::mutex> guard(mutex_);
    Piece& piece = place_of(address);
    if (piece.address != address) {
      return {};
    }
    Piece found = std::exchange(piece, {});
    return found.bytes == bytes ? std::move(found.host) : c10::DataPtr();
  }

 private:
  struct Piece {
    uint64_t address = 0;
    size_t bytes = 0;
    c10::DataPtr host;
  };

  static constexpr size_t kLargestBytes = 4096;
  static constexpr size_t kPlaces = 1024; // at most 4 MiB

  // Blocks begin at multiples of 512 bytes.
  Piece& place_of(uint64_t address) { return places_[address / 512 % kPlaces]; }

  std::mutex mutex_;
  std::array<Piece, kPlaces> places_;
};

} // namespace anyrig::virtual_gpu
