#include "memory/memory.h"

#include "device/gpu_trace.h"
#include "memory/block_origins.h"
#include "memory/gpu_state.h"
#include "memory/host_memory.h"
#include "memory/idle_twins.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "memory/memory_curve.h"
#include "memory/peak_kinds.h"
#include "memory/placed_memory.h"
#include "memory/reused_memory.h"
#include "memory/shared_memory.h"
#include "memory/stacks.h"
#include "time/capture.h"
#include "time/streams.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// In a forked child, memory of the parent is left alone: a thread of the parent may have held any
// of the locks on its way, and the child cannot use CUDA.
void release(void* context) {
  if (C10_LIKELY(!forked_after_use())) {
    delete static_cast<DeviceMemory*>(context);
  }
}

thread_local bool uncounted = false;

// Moves the host bytes out of `memory`. Returns null if twins are in use, which keep the bytes.
c10::DataPtr take_host(DeviceMemory& memory) {
  auto spare = memory.take_spare_twin();
  const c10::Storage shadow = std::move(memory.shadow);
  // Only `shadow` and the spare twin hold the shadow. An inference tensor serves inference only.
  if (spare && shadow.use_count() == 2 && !spare->is_inference()) {
    std::atomic_thread_fence(std::memory_order_acquire); // a kernel's thread may have held it
    keep_idle_twin(std::move(spare));
    return std::move(memory.host);
  }
  spare.reset();
  // If a kernel has resized its twin, the twin holds other bytes.
  const bool in_use = shadow && shadow.use_count() > 1 && memory.host.get() != nullptr &&
      shadow.data() == memory.host.get();
  if (C10_UNLIKELY(in_use)) {
    shadow.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory.host));
    return {};
  }
  return std::move(memory.host);
}

// Changes the address in `data` and nothing else. PyTorch has no function for this, and replacing
// the whole pointer would leave it without its context for a moment.
void set_address(c10::DataPtr& data, void* address) {
  auto* first_word = reinterpret_cast<void**>(&data);
  TORCH_INTERNAL_ASSERT(*first_word == data.get());
  __atomic_store_n(first_word, address, __ATOMIC_RELEASE);
  TORCH_INTERNAL_ASSERT(data.get() == address);
}

// Reports an allocation or a free to PyTorch's profiler, for profile_memory=True.
void report_to_profiler(void* address, int64_t change_bytes, c10::DeviceIndex device) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
    return;
  }
  const AllocatorStats stats = gpu_state(device).allocator.stats();
  c10::reportMemoryUsageToProfiler(
      address, change_bytes,
      static_cast<size_t>(stats.allocated_bytes[PoolStat::kAggregate].current),
      static_cast<size_t>(stats.reserved_bytes[PoolStat::kAggregate].current),
      c10::Device(kDeviceType, device));
}

Block* allocate_block(size_t bytes, c10::DeviceIndex device) {
  check_not_forked();
  if (C10_UNLIKELY(uncounted)) {
    return nullptr;
  }
  provide_context(device);
  try {
    return gpu_state(device).allocator.allocate(
        bytes, current_stream(device).id(), stack_for(RecordStacks::kLive));
  } catch (const OutOfMemory& error) {
    note_refusal(device, error);
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      const AllocatorStats stats = gpu_state(device).allocator.stats();
      c10::reportOutOfMemoryToProfiler(
          static_cast<int64_t>(bytes),
          static_cast<size_t>(stats.allocated_bytes[PoolStat::kAggregate].current),
          static_cast<size_t>(stats.reserved_bytes[PoolStat::kAggregate].current),
          c10::Device(kDeviceType, device));
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.message(device));
  }
}

// The blocks with a recorded stack, by data pointer.
struct RecordedBlocks {
  std::mutex mutex;
  std::unordered_map<const void*, const Block*> by_address;

  static RecordedBlocks& get() {
    static auto* recorded = new RecordedBlocks(); // memory may be freed while the process ends
    return *recorded;
  }
};

using SharedHost = std::shared_ptr<c10::DataPtr>;

void release_shared(void* context) {
  delete static_cast<SharedHost*>(context);
}

c10::DataPtr share(const SharedHost& host) {
  return {host->get(), new SharedHost(host), &release_shared, c10::Device(at::kCPU)};
}

// Returns host memory at the block's own address if its data pointer matters: if history is
// recorded, in which tools look up addresses, or if the block is in a private pool, where graphs
// share memory. Otherwise returns null.
c10::DataPtr place_if_address_matters(const Block* block, c10::DeviceIndex device) {
  if (C10_LIKELY(
          block == nullptr || (!history_enabled() && block->pool->owner == kNoPool) ||
          shape_only())) {
    return {};
  }
  const auto segment = gpu_state(device).allocator.segment_of(block);
  const CaptureId capture = block->was_used ? capture_of(current_stream(device)) : kNoCapture;
  if (capture != kNoCapture) {
    if (auto given = place(block->address, segment); given.get() != nullptr) {
      save_reused_memory(capture, std::move(given), block->bytes);
    }
  }
  return place(block->address, segment);
}

bool is_placed(const DeviceMemory& memory) {
  return reinterpret_cast<uint64_t>(memory.host.get()) == memory.block->address;
}

// Returns the address of the host bytes or, in ShapeOnly, the block's made-up address.
void* address_of(const DeviceMemory& memory) {
  if (memory.host.get() == nullptr && memory.block != nullptr) {
    return reinterpret_cast<void*>(memory.block->address); // NOLINT(performance-no-int-to-ptr)
  }
  return memory.host.get();
}

void set_data_address(const DeviceMemory& memory, const void* address) {
  memory.block->data_address.store(reinterpret_cast<uint64_t>(address), std::memory_order_relaxed);
}

c10::DataPtr make_data_ptr(std::unique_ptr<DeviceMemory> memory) {
  void* address = address_of(*memory);
  if (memory->block != nullptr) {
    set_data_address(*memory, address);
    note_made(*memory);
    note_block_origin(*memory->block, memory->is_workspace);
    note_memory(memory->device);
    trace(&c10::impl::PyInterpreterVTable::trace_gpu_memory_allocation, address);
    report_to_profiler(address, static_cast<int64_t>(memory->block->bytes), memory->device);
  }
  if (C10_UNLIKELY(memory->block != nullptr && memory->block->context != nullptr)) {
    auto& recorded = RecordedBlocks::get();
    std::lock_guard<std::mutex> guard(recorded.mutex);
    recorded.by_address[address] = memory->block;
    memory->recorded_address = address;
  }
  const c10::Device device(kDeviceType, memory->device);
  return {address, memory.release(), &release, device};
}

std::unique_ptr<DeviceMemory> memory_of_block(Block* block, size_t bytes, c10::DeviceIndex device) {
  auto memory = std::make_unique<DeviceMemory>();
  memory->device = device;
  memory->bytes = bytes;
  memory->block = block;
  return memory;
}

} // namespace

DeviceMemory::~DeviceMemory() {
  release_known_values(*this);
  if (C10_UNLIKELY(recorded_address != nullptr)) {
    auto& recorded = RecordedBlocks::get();
    std::lock_guard<std::mutex> guard(recorded.mutex);
    recorded.by_address.erase(recorded_address);
  }
  void* address = address_of(*this);
  if (block != nullptr) {
    trace(&c10::impl::PyInterpreterVTable::trace_gpu_memory_deallocation, address);
    if (C10_UNLIKELY(keep_for_receivers(*this))) {
      return;
    }
  }
  const bool was_sent = is_sent_memory(host);
  auto freed_host = take_host(*this);
  if (block != nullptr) {
    const auto freed_bytes = static_cast<int64_t>(block->bytes);
    GpuState& state = gpu_state(device);
    if (C10_LIKELY(!was_sent)) {
      state.freed.keep(block->address, bytes, std::move(freed_host));
    }
    note_released(*this);
    state.allocator.free(block, stack_for(RecordStacks::kAll));
    if (is_workspace) {
      count_workspace(device, -freed_bytes);
    }
    note_memory(device);
    report_to_profiler(address, -freed_bytes, device);
  }
}

DeviceMemory* device_memory(const c10::DataPtr& data) {
  if (C10_LIKELY(data.get_deleter() == &release)) {
    return static_cast<DeviceMemory*>(data.get_context());
  }
  return memory_by_address(data);
}

c10::DataPtr allocate(size_t bytes, c10::DeviceIndex device) {
  auto memory = memory_of_block(allocate_block(bytes, device), bytes, device);
  if (!shape_only()) {
    memory->host = place_if_address_matters(memory->block, device);
    if (memory->block != nullptr && memory->host.get() == nullptr) {
      memory->host = gpu_state(device).freed.take(memory->block->address, bytes);
    }
    if (memory->host.get() == nullptr) {
      const bool is_fresh = memory->block != nullptr && !memory->block->was_used;
      memory->host = allocate_host(bytes, is_fresh ? Content::Zeros : Content::Any);
    }
  }
  return make_data_ptr(std::move(memory));
}

c10::DataPtr allocate_workspace(size_t bytes, c10::DeviceIndex device) {
  auto memory = memory_of_block(allocate_block(bytes, device), bytes, device);
  if (memory->block != nullptr) {
    memory->is_workspace = true;
    count_workspace(device, static_cast<int64_t>(memory->block->bytes));
  }
  return make_data_ptr(std::move(memory));
}

c10::DataPtr wrap_block(Block* block, c10::DeviceIndex device) {
  auto memory = memory_of_block(block, block->requested_bytes, device);
  memory->host = place_if_address_matters(block, device);
  return make_data_ptr(std::move(memory));
}

c10::DataPtr adopt(c10::DataPtr host, size_t bytes, c10::DeviceIndex device) {
  auto memory = memory_of_block(allocate_block(bytes, device), bytes, device);
  if (shape_only() && host.get() != nullptr) {
    know_all(*memory, std::move(host));
  } else {
    auto placed = place_if_address_matters(memory->block, device);
    if (C10_UNLIKELY(placed.get() != nullptr && host.get() != nullptr)) {
      std::memcpy(placed.get(), host.get(), bytes);
      host = std::move(placed);
    }
    memory->host = std::move(host);
  }
  return make_data_ptr(std::move(memory));
}

c10::DataPtr wrap_received_memory(c10::DataPtr host, size_t bytes, c10::DeviceIndex device) {
  auto memory = std::make_unique<DeviceMemory>();
  memory->device = device;
  memory->bytes = bytes;
  memory->host = std::move(host);
  return make_data_ptr(std::move(memory));
}

c10::DataPtr alias(DeviceMemory& memory) {
  if (memory.host.get() != nullptr && memory.host.get_deleter() != &release_shared) {
    memory.host = share(std::make_shared<c10::DataPtr>(std::move(memory.host)));
  }
  auto other = std::make_unique<DeviceMemory>();
  other->device = memory.device;
  other->bytes = memory.bytes;
  if (memory.host.get() != nullptr) {
    other->host = share(*static_cast<SharedHost*>(memory.host.get_context()));
  }
  return make_data_ptr(std::move(other));
}

void reuse_pool_bytes(c10::StorageImpl& storage) {
  DeviceMemory* memory = is_lazy_clone(storage) ? nullptr : device_memory(storage.data_ptr());
  if (memory == nullptr || memory->block == nullptr || memory->host.get() == nullptr ||
      memory->block->pool->owner == kNoPool || is_placed(*memory)) {
    return;
  }
  alias(*memory); // converts the host bytes to shared ownership
  auto& own = *static_cast<SharedHost*>(memory->host.get_context());
  auto& pool_bytes = gpu_state(memory->device).pool_bytes;
  std::lock_guard<std::mutex> guard(pool_bytes.mutex);
  auto& [known, known_bytes] = pool_bytes.at(memory->block->address);
  const SharedHost existing = known.lock();
  if (existing == own) {
    return;
  }
  if (existing == nullptr || known_bytes < memory->bytes) {
    known = own;
    known_bytes = memory->bytes;
    return;
  }
  std::memcpy(existing->get(), memory->host.get(), memory->bytes);
  change_host(storage, *memory, share(existing));
}

const c10::DataPtr& owning_host(const c10::DataPtr& host) {
  const bool is_shared = host.get_deleter() == &release_shared;
  return is_shared ? **static_cast<SharedHost*>(host.get_context()) : host;
}

bool has_aliases(const DeviceMemory& memory) {
  return memory.host.get_deleter() == &release_shared &&
      static_cast<SharedHost*>(memory.host.get_context())->use_count() > 1;
}

void change_host(c10::StorageImpl& storage, DeviceMemory& memory, c10::DataPtr host) {
  const auto before = take_host(memory);
  memory.host = std::move(host);
  if (memory.block != nullptr) {
    set_data_address(memory, memory.host.get());
  }
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (C10_LIKELY(data.get_deleter() == &release)) {
    set_address(data, memory.host.get());
    return;
  }
  const c10::Device device = storage.device();
  auto old = storage.set_data_ptr(c10::DataPtr(nullptr, device));
  forget_address(old.get());
  old.release_context();
  storage.set_data_ptr_noswap({memory.host.get(), &memory, &release, device});
}

Uncounted::Uncounted() : previous_(uncounted) {
  uncounted = true;
}

bool Uncounted::is_active() {
  return uncounted;
}

Uncounted::~Uncounted() {
  uncounted = previous_;
}

void check_room(size_t bytes, c10::DeviceIndex device) {
  // Rounding adds at most this to a request. With this much free memory, a new segment fits.
  constexpr size_t kLargestRounding = 20 * kMiB;
  GpuState& state = gpu_state(device);
  if (uncounted ||
      (state.driver.free_bytes_lower_bound() >= bytes + kLargestRounding &&
       !state.allocator.is_limited()) ||
      state.allocator.has_room(bytes, current_stream(device).id())) {
    return;
  }
  // Make the request, so that it raises the operator's error and counts as an out-of-memory event.
  state.allocator.free(allocate_block(bytes, device));
}

void record_stream(const c10::DataPtr& data, const c10::Stream& stream) {
  auto* memory = device_memory(data);
  if (memory != nullptr && memory->block != nullptr) {
    gpu_state(memory->device).allocator.record_stream(memory->block, stream.id());
  }
}

Context stack_of_memory(uintptr_t address) {
  auto& recorded = RecordedBlocks::get();
  std::lock_guard<std::mutex> guard(recorded.mutex);
  const auto* pointer = reinterpret_cast<const void*>(address); // NOLINT(performance-no-int-to-ptr)
  const auto found = recorded.by_address.find(pointer);
  return found == recorded.by_address.end() ? nullptr : found->second->context;
}

} // namespace anyrig::virtual_gpu
