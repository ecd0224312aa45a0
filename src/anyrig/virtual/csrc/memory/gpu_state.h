// The state of one device's memory: its driver, its caching allocator, and the host bytes that wait
// for a new owner. Thread-safe, as each member has a lock of its own.
#pragma once

#include "device/device.h"
#include "memory/caching_allocator.h"
#include "memory/gpu_ledger.h"
#include "memory/gpu_memory.h"
#include "memory/freed_host_memory.h"
#include "memory/pool_bytes.h"

#include <cstddef>
#include <vector>

namespace anyrig::virtual_gpu {

// The progress of streams for the allocator. A mark is a time of the virtual clock.
class ClockEvents final : public StreamEvents {
 public:
  explicit ClockEvents(c10::DeviceIndex device) : device_(device) {}

  Mark record(StreamKey stream) override;
  bool passed(StreamKey stream, Mark mark) override;
  void wait(StreamKey stream, Mark mark) override;

 private:
  c10::DeviceIndex device_;
};

// A driver that raises if memory is reserved while another stream is captured in strict mode, as
// CUDA does.
class CaptureGuardedDriver final : public Driver {
 public:
  CaptureGuardedDriver(const DeviceFacts& facts, c10::DeviceIndex device)
      : gpu_(gpu_ledger(), facts.position, static_cast<size_t>(facts.memory_bytes)),
        device_(device) {}

  bool reserve(size_t bytes) override;
  void release(size_t bytes) override { gpu_.release(bytes); }
  size_t free_bytes() const override { return gpu_.free_bytes(); }
  size_t total_bytes() const override { return gpu_.total_bytes(); }
  std::vector<ProcessMemory> processes() const override { return gpu_.processes(); }
  size_t free_bytes_lower_bound() const { return gpu_.free_bytes_lower_bound(); }

 private:
  SharedGpu gpu_;
  c10::DeviceIndex device_;
};

struct GpuState {
  GpuState(const DeviceFacts& facts, c10::DeviceIndex device);

  CaptureGuardedDriver driver;
  ClockEvents events;
  CachingAllocator allocator;
  FreedHostMemory freed;
  PoolBytes pool_bytes;
};

// Returns the state of a device, which lasts until the process ends.
GpuState& gpu_state(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
