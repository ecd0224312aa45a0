#include "memory/pools.h"

#include "device/backward_threads.h"
#include "device/device.h"
#include "memory/memory.h"
#include "memory/pool_checkpoint.h"
#include "memory/raw_memory.h"
#include "memory/stacks.h"
#include "time/streams.h"

#include <pybind11/stl.h>

#include <atomic>
#include <map>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

PrivatePools::StreamFilter accepts_this_thread() {
  return
      [thread = thread_with_gpus()](StreamKey /*stream*/) { return thread_with_gpus() == thread; };
}

PrivatePools::StreamFilter accepts_this_stream(c10::DeviceIndex device) {
  return [wanted = current_stream(device).id()](StreamKey stream) { return stream == wanted; };
}

void begin_pool(c10::DeviceIndex device, PoolId id, PrivatePools::StreamFilter accepts) {
  caching_allocator(device).with_pools(
      [&](PrivatePools& pools) { pools.begin_route(id, std::move(accepts)); });
}

void end_pool(c10::DeviceIndex device, PoolId id) {
  caching_allocator(device).with_pools([&](PrivatePools& pools) { pools.end_route(id); });
}

using Storages = std::vector<uintptr_t>; // StorageImpls, as torch.UntypedStorage._cdata

c10::StorageImpl& as_storage(uintptr_t address) {
  return *reinterpret_cast<c10::StorageImpl*>(address); // NOLINT(performance-no-int-to-ptr)
}

// Restores the pool to `checkpoint`. The storages `stale` lose their memory and no longer free it.
// The storages `owners` take over the restored blocks that they point to. `keep_raw` keeps the
// other restored blocks until they are freed by address.
void restore_pool(
    c10::DeviceIndex device,
    const PoolCheckpoint& checkpoint,
    const Storages& stale,
    const Storages& owners) {
  auto& allocator = caching_allocator(device);
  const auto blocks = checkpoint.blocks_to_free(allocator);
  std::map<Block*, DeviceMemory*> holders;
  for (const uintptr_t address : stale) {
    if (DeviceMemory* memory = device_memory(as_storage(address).data_ptr())) {
      holders[memory->block] = memory;
    }
  }
  for (Block* block : blocks) {
    TORCH_CHECK(
        holders.count(block) > 0,
        "Any stale tensors which are being manually freed must be passed to set checkpoint");
  }
  for (Block* block : blocks) {
    holders[block]->block = nullptr;
    allocator.free(block, stack_for(RecordStacks::kAll));
  }
  std::map<void*, c10::DataPtr> handed_out;
  for (Block* block : checkpoint.restore_blocks(allocator)) {
    auto data = wrap_block(block, device);
    void* address = data.get();
    handed_out.insert_or_assign(address, std::move(data));
  }
  for (const uintptr_t address : owners) {
    auto& storage = as_storage(address);
    const auto found = handed_out.find(storage.mutable_data());
    if (found != handed_out.end()) {
      storage.set_data_ptr_noswap(std::move(found->second));
      handed_out.erase(found);
    }
  }
  for (auto& [address, data] : handed_out) {
    keep_raw(std::move(data));
  }
}

// Returns whether `addresses` are exactly the live allocations of a pool.
bool pool_holds(c10::DeviceIndex device, PoolId id, const std::set<uintptr_t>& addresses) {
  std::set<uintptr_t> live;
  for (const auto& [address, block] : PoolCheckpoint::live_blocks(caching_allocator(device), id)) {
    live.insert(address);
  }
  return live == addresses;
}

void bind_pool_checkpoints(py::module& module) {
  py::class_<PoolCheckpoint>(module, "PoolCheckpoint");
  module.def("pool_checkpoint", [](c10::DeviceIndex device, PoolId id) {
    return PoolCheckpoint(caching_allocator(device), id);
  });
  module.def("restore_pool", &restore_pool);
  module.def("pool_holds", &pool_holds);
  module.def("has_device_memory", [](uintptr_t storage) {
    return device_memory(as_storage(storage).data_ptr()) != nullptr;
  });
  // Frees the memory of a storage, which keeps its address.
  module.def("free_and_forget", [](uintptr_t address) {
    auto& storage = as_storage(address);
    TORCH_CHECK(device_memory(storage.data_ptr()) != nullptr, "Expected standard deleter");
    void* data = storage.mutable_data();
    storage.set_data_ptr_noswap(c10::DataPtr(data, storage.device()));
  });
  module.def("forbid_access", [](const at::Tensor& tensor, std::string message) {
    tensor.unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_(
        std::move(message));
  });
  module.def("forbid_access_to_storage", [](uintptr_t storage, std::string message) {
    as_storage(storage).release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  });
}

void release_pool(c10::DeviceIndex device, PoolId id) {
  caching_allocator(device).with_pools([&](PrivatePools& pools) { pools.remove_user(id); });
}

} // namespace

PoolId new_pool_id(bool is_user_created) {
  // aten/src/ATen/cuda/MemPool.cpp: two counters; one half of the ID is always zero.
  static std::atomic<uint64_t> next_of_user{1};
  static std::atomic<uint64_t> next_of_graph{1};
  return is_user_created ? PoolId{0, next_of_user++} : PoolId{next_of_graph++, 0};
}

std::shared_ptr<PoolAllocator> nccl_allocator() {
  static const auto* allocator = new auto(std::make_shared<PoolAllocator>());
  return *allocator;
}

MemoryPool::MemoryPool(
    std::shared_ptr<PoolAllocator> allocator,
    bool is_user_created,
    bool serves_when_full,
    bool never_splits)
    : allocator_(std::move(allocator)),
      id_(new_pool_id(is_user_created)),
      device_(static_cast<c10::DeviceIndex>(current_device())) {
  caching_allocator(device_).with_pools([&](PrivatePools& pools) {
    PrivatePool& pool = pools.add_user(id_);
    pool.serves_when_full = serves_when_full;
    pool.small.never_splits = pool.large.never_splits = never_splits;
  });
}

MemoryPool::~MemoryPool() {
  if (forked_after_use()) {
    return; // a forked child may inherit held locks
  }
  release_pool(device_, id_);
  caching_allocator(device_).empty_cache(id_, stack_for(RecordStacks::kAll));
}

int MemoryPool::users() const {
  int users = 0;
  caching_allocator(device_).with_pools(
      [&](const PrivatePools& pools) { users = pools.at(id_).users; });
  return users;
}

void bind_memory_pools(py::module& module) {
  py::class_<PoolAllocator, std::shared_ptr<PoolAllocator>>(module, "PoolAllocator");
  py::class_<MemoryPool>(module, "MemoryPool")
      .def(
          py::init<std::shared_ptr<PoolAllocator>, bool, bool, bool>(),
          py::arg("allocator") = py::none(), py::arg("is_user_created") = true,
          py::arg("use_on_oom") = false, py::arg("no_split") = false)
      .def_property_readonly("id", &MemoryPool::id)
      .def_property_readonly("device", &MemoryPool::device)
      .def_property_readonly("allocator", &MemoryPool::allocator)
      .def("use_count", &MemoryPool::users);

  bind_pool_checkpoints(module);
  module.def("new_pool_id", &new_pool_id);
  module.def("begin_pool_of_thread", [](c10::DeviceIndex device, PoolId id) {
    begin_pool(device, id, accepts_this_thread());
  });
  module.def("begin_pool_of_stream", [](c10::DeviceIndex device, PoolId id) {
    // As PyTorch, which checks that the handle is not null. That of the default stream is.
    TORCH_CHECK(
        current_stream(device).id() != kDefaultStream, "Expected stream capture to be under way");
    begin_pool(device, id, accepts_this_stream(device));
  });
  module.def("begin_pool", [](c10::DeviceIndex device, PoolId id) {
    begin_pool(device, id, [](StreamKey /*stream*/) { return true; });
  });
  module.def("end_pool", &end_pool);
  module.def("release_pool", &release_pool);
}

} // namespace anyrig::virtual_gpu
