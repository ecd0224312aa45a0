// Streams of the virtual devices: numbers from CUDA's pools, and the current one of each thread.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

// The default stream of a device has this id, as in CUDA.
inline constexpr c10::StreamId kDefaultStream = 0;

c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream default_stream(c10::DeviceIndex device);
// Makes `stream` current on its device for this thread and returns the one before it.
c10::Stream exchange_stream(c10::Stream stream);
// c10/cuda/CUDAStream.h: 0 is the lowest priority, and PyTorch keeps four of them.
inline constexpr int kHighestPriority = -3;

// The next of the 32 streams of the pool for `priority`, in turn; beyond the highest priority, of
// that.
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int priority_of(const c10::Stream& stream);

// What stands for the address of a stream, torch.cuda.Stream.cuda_stream: 0 for the default one of
// a device, else of no other stream of the process. And back; a number that is not of `device`'s
// streams is that of another library's, which is a stream of its own.
uintptr_t handle_of(const c10::Stream& stream);
c10::Stream stream_of_handle(uintptr_t handle, c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
