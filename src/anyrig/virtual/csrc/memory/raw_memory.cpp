#include "memory/raw_memory.h"

#include "device/device.h"
#include "memory/memory.h"
#include "time/streams.h"

#include <c10/core/StreamGuard.h>

#include <mutex>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

struct RawMemory {
  std::mutex mutex;
  std::unordered_map<uintptr_t, c10::DataPtr> by_address;

  static RawMemory& get() {
    static auto* memory = new RawMemory(); // memory may be freed while the process ends
    return *memory;
  }
};

} // namespace

uintptr_t allocate_raw(size_t bytes, uintptr_t stream) {
  const auto device = static_cast<c10::DeviceIndex>(current_device());
  const c10::StreamGuard on_stream(stream_of_handle(stream, device));
  auto data = allocate(bytes, device);
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  keep_raw(std::move(data));
  return address;
}

void keep_raw(c10::DataPtr data) {
  auto& memory = RawMemory::get();
  std::lock_guard<std::mutex> guard(memory.mutex);
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  memory.by_address.insert_or_assign(address, std::move(data));
}

c10::DataPtr take_raw(uintptr_t address) {
  auto& memory = RawMemory::get();
  std::lock_guard<std::mutex> guard(memory.mutex);
  const auto found = memory.by_address.find(address);
  if (found == memory.by_address.end()) {
    return {};
  }
  c10::DataPtr data = std::move(found->second);
  memory.by_address.erase(found);
  return data;
}

} // namespace anyrig::virtual_gpu
