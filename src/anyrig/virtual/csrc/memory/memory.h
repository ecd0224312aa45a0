// Memory of the virtual devices as PyTorch sees it: DataPtrs whose context holds a block of the
// caching allocator.
//
//   DataPtr ──context──> DeviceMemory ──> Block          the bytes that the allocator model counts
//      │                     ├──────────> host DataPtr   the data; none in ShapeOnly
//      │                     └──────────> shadow         the storage of its twins (twin.h)
//      └──address: of the host bytes; in ShapeOnly the block's made-up address
//
// The host bytes live at least as long as the twins of the memory's tensors: when the program frees
// or resizes the memory, a kernel of another thread or a collective may still use a twin. The
// shadow then owns the bytes, and the last twin frees them.
#pragma once

#include "device/device.h"
#include "memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <functional>

namespace anyrig::virtual_gpu {

class KnownValues; // known_values.h

// Why ShapeOnly does not know the values of some memory: where they come from, or those from which
// they were computed.
enum class WhyUnknown : uint8_t {
  NeverWritten,
  DrawnIntegers, // random numbers of the GPU
  DrawnNumbers,
  TooMany,
  NotComputed, // the CPU has no kernel, or another library's operator made them
  FromOutside, // from a replayed graph, another rank or another process
};

struct DeviceMemory {
  // Owned by twin.cpp. First, because every operator reads these members.
  std::atomic<c10::TensorImpl*> spare_twin{nullptr};
  c10::Storage shadow;
  std::atomic_flag shadow_lock = ATOMIC_FLAG_INIT;

  c10::DeviceIndex device = 0;
  Block* block = nullptr; // null for 0 bytes
  size_t bytes = 0;
  c10::DataPtr host;
  const void* recorded_address = nullptr; // key of its recorded stack, null without one
  bool is_workspace = false;

  // Owned by peak_kinds.cpp.
  bool is_of_forward = false;
  int64_t number = 0;

  // Owned by known_values.cpp.
  std::atomic<KnownValues*> known{nullptr};
  std::atomic<WhyUnknown> why_unknown{WhyUnknown::NeverWritten};
  std::atomic<bool> is_shared_with_processes{false};

  // Returns null, without an atomic exchange, if no twin is kept.
  c10::intrusive_ptr<c10::TensorImpl> take_spare_twin() {
    auto* spare = spare_twin.load(std::memory_order_relaxed) == nullptr
        ? nullptr
        : spare_twin.exchange(nullptr, std::memory_order_acq_rel);
    return c10::intrusive_ptr<c10::TensorImpl>::reclaim(spare);
  }
  ~DeviceMemory();
};

// Returns the context of a virtual device's memory; null for other memory, such as the wrapper that
// pickling puts around a pointer.
DeviceMemory* device_memory(const c10::DataPtr& data);

// Allocates `bytes` on `device`. Raises torch.OutOfMemoryError.
c10::DataPtr allocate(size_t bytes, c10::DeviceIndex device);
// Allocates what a kernel needs for itself. Nothing reads or writes it, so it has no host memory.
// Raises torch.OutOfMemoryError.
c10::DataPtr allocate_workspace(size_t bytes, c10::DeviceIndex device);
// Wraps `block`, which was handed out without a DataPtr.
c10::DataPtr wrap_block(Block* block, c10::DeviceIndex device);
// Turns host memory that already holds a result into memory of `device`, without a copy. Raises
// torch.OutOfMemoryError.
c10::DataPtr adopt(c10::DataPtr host, size_t bytes, c10::DeviceIndex device);

// Returns memory on the same device that shares the host bytes, keeps them alive and counts 0
// bytes. A CUDA graph, which holds only addresses, uses an alias to read and write memory that is
// freed after the capture.
c10::DataPtr alias(DeviceMemory& memory);

// Returns memory of `device` over host bytes that another process allocated and counts; `host` is
// null in ShapeOnly.
c10::DataPtr wrap_received_memory(c10::DataPtr host, size_t bytes, c10::DeviceIndex device);

// Returns the pointer that owns the host bytes: `host`, or the shared owner of a memory and its
// aliases.
const c10::DataPtr& owning_host(const c10::DataPtr& host);
// Returns whether an alias of `memory` is alive.
bool has_aliases(const DeviceMemory& memory);

// Replaces the host bytes of `storage`, whose memory is `memory`, by `host`, which holds the same
// values. Other threads may look up the memory of `storage` concurrently, but must not use its
// bytes.
void change_host(c10::StorageImpl& storage, DeviceMemory& memory, c10::DataPtr host);

// Gives a storage in a private pool the host bytes that its block had before, so that graphs that
// share the pool share memory, as on a GPU. Copies the current values. Does nothing if the storage
// is not in a private pool or the host could map memory at the block's address.
void reuse_pool_bytes(c10::StorageImpl& storage);
// Returns the number of blocks in private pools whose host bytes are on record, for tests.
size_t count_pool_bytes(c10::DeviceIndex device);

// While an instance is alive on a thread, the thread's allocations are not counted.
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

// Raises torch.OutOfMemoryError unless `device` has room for a block of `bytes`.
void check_room(size_t bytes, c10::DeviceIndex device);

// Marks the memory as used on `stream`: after it is freed, it is reused only once the work queued
// there is done.
void record_stream(const c10::DataPtr& data, const c10::Stream& stream);

// Returns the recorded stack of the live allocation whose data pointer is `address`; null if none.
Context stack_of_memory(uintptr_t address);

// Adds an observer that is called for each request that does not fit, before the error is raised.
using OutOfMemoryObserver = std::function<void(c10::DeviceIndex, const OutOfMemory&)>;
void add_out_of_memory_observer(OutOfMemoryObserver observer);

CachingAllocator& caching_allocator(c10::DeviceIndex device);
// Takes memory of a GPU for this process outside the caching allocator (gpu_memory.h), and returns
// it. `reserve_on_gpu` returns false if the GPU is full.
bool reserve_on_gpu(c10::DeviceIndex device, size_t bytes);
void release_on_gpu(c10::DeviceIndex device, size_t bytes);
// Returns (free bytes, total bytes). Unlike cudaMemGetInfo, opens no context.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);
// Returns the processes that hold memory on the GPU.
std::vector<ProcessMemory> gpu_processes(c10::DeviceIndex device);

c10::DeviceAllocator* device_allocator();

} // namespace anyrig::virtual_gpu
