// The interfaces that the caching allocator depends on: GPU memory, and the progress of streams.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/memory_block.h"
#include "memory/out_of_memory.h"

namespace anyrig::virtual_gpu {

/// The memory of one GPU, which several allocators may share, also across processes. The caller
/// holds the allocator's lock, so implementations must not call the allocator.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Reserves `bytes` for this process (cudaMalloc, cuMemCreate). Returns false when they are not
  /// free.
  virtual bool reserve(size_t bytes) = 0;
  /// Releases `bytes` (cudaFree, cuMemUnmap). CUDA waits for the device's work first.
  virtual void release(size_t bytes) = 0;
  virtual size_t free_bytes() const = 0;   // cudaMemGetInfo's first result
  virtual size_t total_bytes() const = 0;  // its second result, and totalGlobalMem
  /// Returns the processes that hold memory on the GPU, for the out-of-memory message.
  virtual std::vector<ProcessMemory> processes() const = 0;
};

/// A GPU that only one process uses.
class PrivateGpu final : public Driver {
 public:
  explicit PrivateGpu(size_t total_bytes) : total_bytes_(total_bytes) {}

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

/// The progress of streams. Called with the allocator's lock held.
class StreamEvents {
 public:
  using Mark = double;  // a point in a stream's work, in units of the implementation

  virtual ~StreamEvents() = default;
  virtual Mark record(StreamKey stream) = 0;           // after all work queued now
  virtual bool passed(StreamKey stream, Mark mark) = 0;  // without waiting
  virtual void wait(StreamKey stream, Mark mark) = 0;
};

/// Streams whose work completes when it is queued.
class InstantStreams final : public StreamEvents {
 public:
  Mark record(StreamKey) override { return 0; }
  bool passed(StreamKey, Mark) override { return true; }
  void wait(StreamKey, Mark) override {}
};

}  // namespace anyrig::virtual_gpu
