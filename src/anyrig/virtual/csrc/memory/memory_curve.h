// The memory of each device over virtual time, by kind. Off until `watch_memory`.
//
// A sample is taken at each allocation and release. If there are many, neighbours are merged into
// the larger one, so a peak is never lost.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace anyrig::virtual_gpu {

struct MemorySample {
  double seconds = 0;          // the time of the host's last launch
  int64_t tensor_bytes = 0;    // handed out by the caching allocator, without workspaces
  int64_t workspace_bytes = 0; // what kernels allocated for themselves
  int64_t cached_bytes = 0;    // taken by the caching allocator and not handed out
  int64_t context_bytes = 0;   // the CUDA context
  int64_t collective_bytes = 0; // NCCL's buffers
  int64_t mapped_bytes = 0;    // mapped by the program itself

  int64_t total_bytes() const {
    return tensor_bytes + workspace_bytes + cached_bytes + context_bytes + collective_bytes +
        mapped_bytes;
  }
};

struct MemoryCurve {
  std::vector<MemorySample> samples;
  MemorySample peak; // the sample with the largest total, and among those with the most tensors
};

// Watches memory, beginning with empty curves, or no longer.
void watch_memory(bool watches);
// Takes a sample of `device`, if memory is watched. The caller must not hold the allocator's lock.
void note_memory(c10::DeviceIndex device);
// Changes the bytes of the workspaces of `device` by `change`.
void count_workspace(c10::DeviceIndex device, int64_t change);
// Returns the curve until now; it is empty if `device` was not used.
MemoryCurve memory_curve(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
