// Memory of the virtual devices as PyTorch sees it: DataPtrs whose context says which block of the
// caching allocator they stand for.
//
//   DataPtr ──context──> DeviceMemory ──> Block          bytes counted by the allocator model
//      │                     ├──────────> host DataPtr   the bytes themselves; none in ShapeOnly
//      │                     └──────────> shadow         what twins of its tensors use (twin.h)
//      └──address: of the host bytes, in ShapeOnly the made-up one of the block
//
// The host bytes live at least as long as the twins of the memory's tensors: a kernel of another
// thread, or a collective, may still use twins when the program frees or resizes the memory. The
// shadow owns the bytes from then on, and the last twin frees them.
#pragma once

#include "memory/caching_allocator.h"
#include "device/device.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>

namespace anyrig::virtual_gpu {

// In ShapeOnly: the values that are known, and up to which byte (dispatch/known_values.h).
struct KnownValues final : c10::intrusive_ptr_target {
  c10::Storage storage; // never replaced
  std::atomic<size_t> bytes{0};
};

struct DeviceMemory {
  // Owned by twin.cpp. At the front, with what every operator reads.
  std::atomic<c10::TensorImpl*> spare_twin{nullptr};
  c10::Storage shadow;
  std::atomic_flag shadow_lock = ATOMIC_FLAG_INIT;

  c10::DeviceIndex device = 0;
  Block* block = nullptr; // null for 0 bytes
  size_t bytes = 0;
  c10::DataPtr host;
  const void* recorded_address = nullptr; // where its stack is found, if it has one

  // Owned by known_values.cpp.
  c10::intrusive_ptr<KnownValues> known;

  void drop_spare_twin();
  ~DeviceMemory();
};

// The context of memory of a virtual device; null for memory that came from elsewhere, such as
// the wrapper pickling puts around a pointer.
DeviceMemory* device_memory(const c10::DataPtr& data);

// New memory on `device`. Raises torch.OutOfMemoryError.
c10::DataPtr allocate(size_t bytes, c10::DeviceIndex device);
// The memory of `block`, which was handed out without one.
c10::DataPtr memory_of(Block* block, c10::DeviceIndex device);
// Makes host memory that already holds a result the memory of `device`, without a copy.
c10::DataPtr adopt(c10::DataPtr host, size_t bytes, c10::DeviceIndex device);

// Memory of the same card over the same host bytes, which it keeps alive and which count for
// nothing: what a CUDA graph, holding addresses alone, still reads and writes once they are freed.
c10::DataPtr alias(DeviceMemory& memory);

// Memory of `device` over host bytes that another process made and counts; none in ShapeOnly.
c10::DataPtr made_elsewhere(c10::DataPtr host, size_t bytes, c10::DeviceIndex device);

// The pointer that owns the host bytes, where a memory and its aliases share it; else `host`.
const c10::DataPtr& own_host(const c10::DataPtr& host);
// Whether an alias of `memory` is alive.
bool has_aliases(const DeviceMemory& memory);

// Gives `storage`, whose memory is `memory`, other host bytes, which hold the same. Other threads
// may look up the memory of `storage` meanwhile, but must not use its bytes.
void change_host(c10::StorageImpl& storage, DeviceMemory& memory, c10::DataPtr host);

// In a private pool a block has the same host bytes each time it is handed out, as on a card, while
// a graph or a tensor holds on to them: graphs that share a pool meet in its memory. Gives the
// storage those bytes, with what it holds now, where the host had no room at the block's address.
void settle_in_pool(c10::StorageImpl& storage);

// While one is alive on a thread, memory that the thread asks for counts for nothing.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  static bool is_active();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  bool previous_;
};

// Raises torch.OutOfMemoryError unless `device` could hand out a block of `bytes` now.
void check_room(size_t bytes, c10::DeviceIndex device);

// `stream` uses the memory too: once freed, it is handed out again when that work is done.
void record_stream(const c10::DataPtr& data, const c10::Stream& stream);

// The recorded stack of the live allocation whose data pointer is `address`; null without one.
Context stack_of_memory(uintptr_t address);

// `observer` is told of each request that does not fit, before the error is raised.
using OutOfMemoryObserver = std::function<void(c10::DeviceIndex, const OutOfMemory&)>;
void add_out_of_memory_observer(OutOfMemoryObserver observer);

CachingAllocator& caching_allocator(c10::DeviceIndex device);
// Bytes that nobody holds, and all bytes, as cudaMemGetInfo.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);
// Who holds memory on the card.
std::vector<ProcessMemory> card_processes(c10::DeviceIndex device);

c10::DeviceAllocator* device_allocator();

} // namespace anyrig::virtual_gpu
