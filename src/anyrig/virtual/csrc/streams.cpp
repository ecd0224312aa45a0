#include "streams.h"

#include "device.h"

#include <array>
#include <atomic>

namespace anyrig::virtual_gpu {
namespace {

// c10/cuda/CUDAStream.cpp: 32 streams a pool, one pool a priority, handed out in turn.
constexpr int kStreamsPerPool = 32;

// Positions 0..31 are normal, 32..63 high priority; the id of position p is p + 1.
std::array<std::array<std::atomic<unsigned>, 2>, kMaxDevices> next_in_pool{};

thread_local std::array<c10::StreamId, kMaxDevices> current_ids{};

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id);
}

c10::DeviceIndex resolve(c10::DeviceIndex device) {
  if (device < 0) {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  check_device_index(device);
  return device;
}

} // namespace

c10::Stream current_stream(c10::DeviceIndex device) {
  const auto index = resolve(device);
  return make_stream(index, current_ids[index]);
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return make_stream(resolve(device), kDefaultStream);
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto& id = current_ids[resolve(stream.device_index())];
  const auto previous = make_stream(stream.device_index(), id);
  id = stream.id();
  return previous;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, int priority) {
  const auto index = resolve(device);
  const int pool = priority < 0 ? 1 : 0;
  const unsigned position = next_in_pool[index][pool]++ % kStreamsPerPool;
  return make_stream(index, 1 + pool * kStreamsPerPool + static_cast<int>(position));
}

} // namespace anyrig::virtual_gpu
