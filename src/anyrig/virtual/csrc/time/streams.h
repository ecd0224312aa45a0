// Streams of the virtual devices: IDs from pools like CUDA's, and each thread's current stream.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

// The ID of a device's default stream, as in CUDA.
inline constexpr c10::StreamId kDefaultStream = 0;

c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream default_stream(c10::DeviceIndex device);
// Makes `stream` current on its device for this thread and returns the previous one.
c10::Stream exchange_stream(c10::Stream stream);
// c10/cuda/CUDAStream.h: PyTorch has four priorities, and 0 is the lowest.
inline constexpr int kHighestPriority = -3;

// Returns the next of the 32 streams in the pool for `priority`, in turn. A priority beyond the
// highest counts as the highest.
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int priority_of(const c10::Stream& stream);

// Returns torch.cuda.Stream.cuda_stream, the value in place of a stream's address: 0 for the
// default stream of any device; otherwise unique in the process. `stream_of_handle` is the inverse.
// It treats a handle that is not one of `device`'s streams as a stream of another library.
uintptr_t handle_of(const c10::Stream& stream);
c10::Stream stream_of_handle(uintptr_t handle, c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
