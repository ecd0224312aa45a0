// GPU memory that does not come from the caching allocator: the CUDA context, NCCL's buffers, and
// what a program maps with cuMemCreate. It counts in torch.cuda.mem_get_info and nvidia-smi, but
// not in torch.cuda.memory_allocated.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <optional>

namespace anyrig::virtual_gpu {

enum class GpuUse { Context, Communication, Mapped };
inline constexpr size_t kGpuUses = 3;

// Owns part of a GPU's memory.
class GpuMemory {
 public:
  // Returns no memory when the GPU is full.
  static std::optional<GpuMemory> try_reserve(c10::DeviceIndex device, size_t bytes, GpuUse use);

  // Raises RuntimeError, "CUDA driver error: out of memory", when the GPU is full.
  GpuMemory(c10::DeviceIndex device, size_t bytes);
  ~GpuMemory();
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

 private:
  GpuMemory(c10::DeviceIndex device, size_t bytes, GpuUse use)
      : device_(device), bytes_(bytes), use_(use) {}

  c10::DeviceIndex device_;
  size_t bytes_; // 0: moved from
  GpuUse use_ = GpuUse::Mapped;
};

// Opens the CUDA context of `device`, which takes memory until the process ends, at the first call.
// Raises torch.AcceleratorError, "out of memory", when the GPU is full.
void provide_context(c10::DeviceIndex device);

// Returns the bytes that this process holds outside the caching allocator, by use.
std::array<size_t, kGpuUses> gpu_memory(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
