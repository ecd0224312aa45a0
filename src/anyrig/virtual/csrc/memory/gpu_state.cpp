#include "memory/gpu_state.h"

#include "memory/allocator_options.h"
#include "memory/memory.h"
#include "memory/shared_memory.h"
#include "time/capture.h"
#include "time/clock.h"
#include "time/streams.h"

#include <mutex>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// Returns the first address of a device, far from the host's addresses and from other devices. In
// Compute the host can map memory there (placed_memory.h): the range lies within the 47-bit
// address space, between the regions that Linux uses.
uint64_t first_address(c10::DeviceIndex device) {
  const auto position = static_cast<uint64_t>(device);
  constexpr uint64_t kRoom = uint64_t{1} << 46;
  return shape_only() ? (uint64_t{1} << 62) + (position << 52)
                      : (uint64_t{1} << 44) + position * (kRoom / devices().size());
}

} // namespace

StreamEvents::Mark ClockEvents::record(StreamKey stream) {
  return Clock::get().done_at(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device_), stream));
}

bool ClockEvents::passed(StreamKey /*stream*/, Mark mark) {
  return Clock::get().passed(mark);
}

void ClockEvents::wait(StreamKey /*stream*/, Mark mark) {
  Clock::get().wait_on_host_without_giving_way(mark); // the allocator is locked
}

bool CaptureGuardedDriver::reserve(size_t bytes) {
  check_unsafe_call(current_stream(device_));
  return gpu_.reserve(bytes);
}

GpuState::GpuState(const DeviceFacts& facts, c10::DeviceIndex device)
    : driver(facts, device),
      events(device),
      allocator(
          driver,
          events,
          first_address(device),
          allocator_options_from_environment(),
          [device] { return take_unused_sent(device); }) {}

GpuState& gpu_state(c10::DeviceIndex device) {
  // Never freed: memory may be released while the process ends.
  static GpuState* const* gpu_states = [] {
    auto** made = new GpuState*[devices().size()];
    for (size_t i = 0; i < devices().size(); ++i) {
      made[i] = new GpuState(devices()[i], static_cast<c10::DeviceIndex>(i));
    }
    return made;
  }();
  check_device_index(device);
  return *gpu_states[device];
}

CachingAllocator& caching_allocator(c10::DeviceIndex device) {
  return gpu_state(device).allocator;
}

size_t count_pool_bytes(c10::DeviceIndex device) {
  auto& pool_bytes = gpu_state(device).pool_bytes;
  std::lock_guard<std::mutex> guard(pool_bytes.mutex);
  return pool_bytes.by_address.size();
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  const auto& driver = gpu_state(device).driver;
  return {driver.free_bytes(), driver.total_bytes()};
}

std::vector<ProcessMemory> gpu_processes(c10::DeviceIndex device) {
  return gpu_state(device).driver.processes();
}

bool reserve_on_gpu(c10::DeviceIndex device, size_t bytes) {
  return gpu_state(device).driver.reserve(bytes);
}

void release_on_gpu(c10::DeviceIndex device, size_t bytes) {
  gpu_state(device).driver.release(bytes);
}

} // namespace anyrig::virtual_gpu
