#include "time/streams.h"

#include "device/device.h"
#include "device/gpu_trace.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace anyrig::virtual_gpu {
namespace {

// c10/cuda/CUDAStream.cpp: one pool of 32 streams for each priority, handed out in turn. The stream
// at position p of pool q has the ID 1 + 32 q + p.
constexpr int kStreamsPerPool = 32;
constexpr int kPools = 1 - kHighestPriority;

std::array<std::array<std::atomic<unsigned>, kPools>, kMaxDevices> next_in_pool{};

// Handles look like heap addresses, though nothing is stored there: each device has a range of 64
// KiB, each stream 64 bytes of it.
constexpr uintptr_t kFirstHandle = 0x5c0000000000;
constexpr uintptr_t kHandleBytesPerDevice = 0x10000;
constexpr uintptr_t kHandleBytesPerStream = 0x40;

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
  const int pool = std::clamp(-priority, 0, kPools - 1);
  const unsigned taken = next_in_pool[index][pool]++;
  const int position = static_cast<int>(taken % kStreamsPerPool);
  const auto stream = make_stream(index, 1 + pool * kStreamsPerPool + position);
  if (taken < kStreamsPerPool) {
    trace(&c10::impl::PyInterpreterVTable::trace_gpu_stream_creation, stream);
  }
  return stream;
}

uintptr_t handle_of(const c10::Stream& stream) {
  const auto id = static_cast<uintptr_t>(stream.id());
  if (stream.id() == kDefaultStream || id > kPools * kStreamsPerPool) {
    return id;
  }
  return kFirstHandle + static_cast<uintptr_t>(stream.device_index()) * kHandleBytesPerDevice +
      id * kHandleBytesPerStream;
}

c10::Stream stream_of_handle(uintptr_t handle, c10::DeviceIndex device) {
  const auto index = resolve(device);
  const uintptr_t id =
      (handle - kFirstHandle - static_cast<uintptr_t>(index) * kHandleBytesPerDevice) /
      kHandleBytesPerStream;
  const bool is_ours = id <= kPools * kStreamsPerPool &&
      handle_of(make_stream(index, static_cast<c10::StreamId>(id))) == handle;
  return make_stream(index, static_cast<c10::StreamId>(is_ours ? id : handle));
}

int priority_of(const c10::Stream& stream) {
  return stream.id() == kDefaultStream ? 0 : -static_cast<int>((stream.id() - 1) / kStreamsPerPool);
}

} // namespace anyrig::virtual_gpu
