#include "memory/gpu_memory.h"

#include "device/cuda_error.h"
#include "device/device.h"
#include "memory/memory.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

using GpuUseCounts = std::array<std::array<std::atomic<size_t>, kGpuUses>, kMaxDevices>;

std::atomic<size_t>& count_of(c10::DeviceIndex device, GpuUse use) {
  static auto* counts = new GpuUseCounts(); // memory may be released while the process ends
  return (*counts)[device][static_cast<size_t>(use)];
}

} // namespace

std::optional<GpuMemory> GpuMemory::try_reserve(c10::DeviceIndex device, size_t bytes, GpuUse use) {
  if (bytes > 0 && !reserve_on_gpu(device, bytes)) {
    return std::nullopt;
  }
  count_of(device, use) += bytes;
  return GpuMemory(device, bytes, use);
}

GpuMemory::GpuMemory(c10::DeviceIndex device, size_t bytes) : device_(device), bytes_(bytes) {
  check_not_forked();
  provide_context(device);
  TORCH_CHECK(reserve_on_gpu(device, bytes), "CUDA driver error: out of memory");
  count_of(device, use_) += bytes;
}

GpuMemory::GpuMemory(GpuMemory&& other) noexcept
    : device_(other.device_), bytes_(std::exchange(other.bytes_, 0)), use_(other.use_) {}

GpuMemory::~GpuMemory() {
  if (bytes_ > 0) {
    count_of(device_, use_) -= bytes_;
    release_on_gpu(device_, bytes_);
  }
}

void provide_context(c10::DeviceIndex device) {
  if (C10_LIKELY(has_context(device))) {
    return;
  }
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
  if (has_context(device)) {
    return;
  }
  const auto bytes = static_cast<size_t>(devices()[device].driver_memory.context_bytes);
  auto context = GpuMemory::try_reserve(device, bytes, GpuUse::Context);
  if (!context.has_value()) {
    raise_cuda_error(CudaError::MemoryAllocation);
  }
  new GpuMemory(std::move(*context)); // until the process ends
  open_context(device);
}

std::array<size_t, kGpuUses> gpu_memory(c10::DeviceIndex device) {
  check_device_index(device);
  std::array<size_t, kGpuUses> bytes{};
  for (size_t use = 0; use < kGpuUses; ++use) {
    bytes[use] = count_of(device, static_cast<GpuUse>(use));
  }
  return bytes;
}

} // namespace anyrig::virtual_gpu
