#include "memory/lazy_clones.h"

#include "device/device.h"
#include "memory/memory.h"
#include "operators/kernels.h"
#include "time/clock.h"
#include "time/streams.h"

#include <ATen/ops/_lazy_clone_native.h>

#include <mutex>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

struct SharedAddresses {
  std::mutex mutex;
  std::unordered_map<const void*, c10::DataPtr> memories;

  static SharedAddresses& get() {
    static auto* addresses = new SharedAddresses(); // memory may be freed while the process ends
    return *addresses;
  }
};

void release_by_address(void* address) {
  if (forked_after_use()) {
    return; // as for all memory (memory.cpp)
  }
  auto& shared = SharedAddresses::get();
  c10::DataPtr memory; // released after the lock
  std::lock_guard<std::mutex> guard(shared.mutex);
  const auto found = shared.memories.find(address);
  if (found != shared.memories.end()) {
    memory = std::move(found->second);
    shared.memories.erase(found);
  }
}

// Enters the memory of `storage` into the table. Returns false if the storage has no memory, or if
// the table has other memory at the same address, as for tensors of CUDA graphs, which may share
// their bytes.
bool register_address(c10::StorageImpl& storage) {
  if (memory_by_address(storage.data_ptr()) != nullptr) {
    return true;
  }
  void* address = storage._mutable_data_ptr_no_checks().get();
  if (address == nullptr || device_memory(storage.data_ptr()) == nullptr) {
    return false;
  }
  auto& shared = SharedAddresses::get();
  std::lock_guard<std::mutex> guard(shared.mutex);
  if (shared.memories.count(address) > 0) {
    return false;
  }
  const c10::Device device = storage.device();
  shared.memories[address] = storage.set_data_ptr({address, address, &release_by_address, device});
  return true;
}

at::Tensor lazy_clone(const at::Tensor& self) {
  auto& storage = *self.storage().unsafeGetStorageImpl();
  return register_address(storage) ? at::native::_lazy_clone(self) : self.clone();
}

} // namespace

DeviceMemory* memory_by_address(const c10::DataPtr& data) {
  if (data.get_deleter() != &release_by_address && !c10::impl::cow::is_cow_data_ptr(data)) {
    return nullptr;
  }
  auto& shared = SharedAddresses::get();
  std::lock_guard<std::mutex> guard(shared.mutex);
  const auto found = shared.memories.find(data.get());
  return found == shared.memories.end() ? nullptr : device_memory(found->second);
}

void forget_address(const void* address) {
  auto& shared = SharedAddresses::get();
  std::lock_guard<std::mutex> guard(shared.mutex);
  const auto found = shared.memories.find(address);
  if (found != shared.memories.end()) {
    found->second.release_context();
    shared.memories.erase(found);
  }
}

void copy_lazy_clone(c10::StorageImpl& storage) {
  CurrentDevice guard(storage.device().index());
  const void* before = storage.data();
  storage.mutable_data(); // copies; the copying function's name differs between PyTorch versions
  if (storage.data() != before) {
    const auto bytes = static_cast<double>(storage.nbytes());
    Clock::get().run(current_stream(storage.device().index()), memory_work(bytes, bytes));
  }
}

void register_lazy_clones(torch::Library& library, Names& names) {
  register_kernel(library, names, "_lazy_clone", lazy_clone);
}

} // namespace anyrig::virtual_gpu
