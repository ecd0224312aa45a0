// GPU memory that does not come from the caching allocator: the CUDA context, NCCL's buffers, and
// what a program maps with cuMemCreate. It counts in torch.cuda.mem_get_info and nvidia-smi, but
// not in torch.cuda.memory_allocated.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <optional>

namespace anyrig::virtual_gpu {

enum class CardUse { Context, Communication, Mapped };
inline constexpr size_t kCardUses = 3;

// Owns part of a GPU's memory.
class CardMemory {
 public:
  // Returns no memory when the GPU is full.
  static std::optional<CardMemory> try_reserve(c10::DeviceIndex device, size_t bytes, CardUse use);

  // Raises RuntimeError, "CUDA driver error: out of memory", when the GPU is full.
  CardMemory(c10::DeviceIndex device, size_t bytes);
  ~CardMemory();
  CardMemory(CardMemory&& other) noexcept;
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;

 private:
  CardMemory(c10::DeviceIndex device, size_t bytes, CardUse use)
      : device_(device), bytes_(bytes), use_(use) {}

  c10::DeviceIndex device_;
  size_t bytes_; // 0: moved from
  CardUse use_ = CardUse::Mapped;
};

// Opens the CUDA context of `device`, which takes memory until the process ends, at the first call.
// Raises torch.AcceleratorError, "out of memory", when the GPU is full.
void provide_context(c10::DeviceIndex device);

// Returns the bytes that this process holds outside the caching allocator, by use.
std::array<size_t, kCardUses> card_memory(c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
