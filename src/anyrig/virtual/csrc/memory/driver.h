// What the caching allocator asks of the world around it: memory of the card, progress of streams.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/memory_block.h"
#include "memory/out_of_memory.h"

namespace anyrig::virtual_gpu {

/// The memory of one card. Several allocators, of several processes too, may share it.
/// Called with the allocator locked, so it must not call back into it.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Takes `bytes` for this process (cudaMalloc, cuMemCreate); false when they are not free.
  virtual bool reserve(size_t bytes) = 0;
  /// Gives `bytes` back (cudaFree, cuMemUnmap). CUDA waits for the device's work first.
  virtual void release(size_t bytes) = 0;
  virtual size_t free_bytes() const = 0;   // cudaMemGetInfo's first number
  virtual size_t total_bytes() const = 0;  // its second, and totalGlobalMem
  /// Who holds memory on the card, for the text of out-of-memory errors.
  virtual std::vector<ProcessMemory> processes() const = 0;
};

/// A card that one process has to itself.
class PrivateCard final : public Driver {
 public:
  explicit PrivateCard(size_t total_bytes) : total_bytes_(total_bytes) {}

  bool reserve(size_t bytes) override {
    size_t used = used_bytes_;
    do {
      if (bytes > total_bytes_ - used) return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void release(size_t bytes) override { used_bytes_ -= bytes; }
  size_t free_bytes() const override { return total_bytes_ - used_bytes_; }
  size_t total_bytes() const override { return total_bytes_; }
  std::vector<ProcessMemory> processes() const override { return {{std::nullopt, used_bytes_}}; }

 private:
  const size_t total_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

/// Tells when work queued on a stream is done. Called with the allocator locked.
class StreamEvents {
 public:
  using Mark = double;  // a point in a stream's work; what it measures is the implementation's

  virtual ~StreamEvents() = default;
  virtual Mark record(StreamKey stream) = 0;           // after all that is queued now
  virtual bool passed(StreamKey stream, Mark mark) = 0;  // without waiting
  virtual void wait(StreamKey stream, Mark mark) = 0;
};

/// Streams whose work is done as soon as it is queued.
class InstantStreams final : public StreamEvents {
 public:
  Mark record(StreamKey) override { return 0; }
  bool passed(StreamKey, Mark) override { return true; }
  void wait(StreamKey, Mark) override {}
};

}  // namespace anyrig::virtual_gpu
