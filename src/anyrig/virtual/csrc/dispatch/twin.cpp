#include "dispatch/twin.h"

#include "hazards/write_watch.h"
#include "memory/idle_twins.h"
#include "memory/known_values.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace anyrig::virtual_gpu {
namespace {

// Gives access to the one field of a tensor that has no setter: the device it reports.
struct TensorWithDevice final : c10::TensorImpl {
  TensorWithDevice(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype)
      : c10::TensorImpl(std::move(storage), keys, dtype) {}

  static void set_device(c10::TensorImpl& tensor, c10::Device device) {
    constexpr auto field = &TensorWithDevice::device_opt_;
    tensor.*field = device;
  }
};

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Returns a non-owning pointer, for kernels, to memory at `address`.
c10::DataPtr borrow(void* address) {
  return {shape_only() ? nullptr : address, kernel_device()};
}

c10::Allocator* kernel_allocator() {
  return shape_only() ? c10::GetAllocator(at::kMeta) : c10::GetCPUAllocator();
}

c10::Storage make_shadow(void* address, size_t bytes) {
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, borrow(address), kernel_allocator(),
          /*resizable=*/true));
}

// Makes the shadow of an idle twin that of `memory`.
c10::Storage renew_shadow(const c10::TensorImpl& idle, const DeviceMemory& memory) {
  c10::Storage shadow = idle.unsafe_storage();
  c10::StorageImpl& impl = *shadow.unsafeGetStorageImpl();
  impl.set_nbytes(memory.bytes);
  impl.set_data_ptr_noswap(borrow(memory.host.get()));
  impl.set_allocator(kernel_allocator()); // kernels may change this and the next
  impl.set_resizable(true);
  return shadow;
}

at::Tensor make_twin(c10::Storage shadow, caffe2::TypeMeta dtype) {
  const auto key = shape_only() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  return at::detail::make_tensor<TensorWithDevice>(
      std::move(shadow), c10::DispatchKeySet(key), dtype);
}

// Returns an unused twin over the bytes of `storage`, of any geometry and perhaps of another dtype.
at::Tensor new_twin(const c10::StorageImpl& storage, caffe2::TypeMeta dtype) {
  DeviceMemory* memory = device_memory(storage.data_ptr());
  if (memory == nullptr) {
    return make_twin(make_shadow(const_cast<void*>(storage.data()), storage.nbytes()), dtype);
  }
  TwinLock lock(*memory);
  if (!memory->shadow) {
    if (auto idle = take_idle_twin()) {
      memory->shadow = renew_shadow(*idle, *memory);
      return at::Tensor(std::move(idle));
    }
    memory->shadow = make_shadow(memory->host.get(), memory->bytes);
  }
  return make_twin(memory->shadow, dtype);
}

void copy_geometry(const c10::TensorImpl& from, c10::TensorImpl& to) {
  if (to.storage_offset() != from.storage_offset()) {
    to.set_storage_offset(from.storage_offset());
  }
  if (to.sizes() != from.sizes() || to.strides() != from.strides()) {
    to.set_sizes_and_strides(from.sizes(), from.strides());
  }
}

// Gives an unused twin the dtype and geometry of `owner`, and the flags that affect operators.
void make_like(c10::TensorImpl& twin, const c10::TensorImpl& owner) {
  if (twin.is_wrapped_number()) {
    twin.set_wrapped_number(false); // while it has no dimensions
  }
  if (twin.dtype() != owner.dtype()) {
    twin.set_storage_and_dtype(c10::Storage(twin.unsafe_storage()), owner.dtype());
  }
  copy_geometry(owner, twin);
  if (owner.is_wrapped_number()) {
    twin.set_wrapped_number(true);
  }
  if (twin.is_conj() != owner.is_conj()) {
    twin._set_conj(owner.is_conj());
  }
  if (twin.is_neg() != owner.is_neg()) {
    twin._set_neg(owner.is_neg());
  }
}

// ShapeOnly: hands what is known of a storage to the memory that takes the place of its memory.
void move_known(
    const c10::StorageImpl& storage,
    const c10::DataPtr& memory,
    bool is_object = false) {
  const DeviceMemory* from = shape_only() ? device_memory(storage.data_ptr()) : nullptr;
  DeviceMemory* to = shape_only() ? device_memory(memory) : nullptr;
  if (from != nullptr && to != nullptr) {
    move_known_values(*from, *to, is_object);
  }
}

} // namespace

c10::Device kernel_device() {
  return shape_only() ? at::kMeta : at::kCPU;
}

at::Tensor twin_of(const at::Tensor& tensor) {
  if (!is_virtual(tensor)) {
    // Keep a Python number among the operands: it takes no part in type promotion, and Meta kernels
    // written in Python receive it as a number.
    const bool becomes_meta = shape_only() && tensor.defined() && tensor.is_cpu() &&
        tensor.layout() == at::kStrided && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return becomes_meta
        ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta))
        : tensor;
  }
  c10::TensorImpl& owner = *tensor.unsafeGetTensorImpl();
  const bool has_storage = static_cast<bool>(owner.unsafe_storage());
  if (C10_UNLIKELY(!has_storage) && owner.layout() == at::kStrided) {
    (void)owner.storage(); // raises the error of the code that released its memory
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_storage, "virtual GPUs compute with strided tensors only, but this tensor has layout ",
      owner.layout());
  c10::StorageImpl& storage = storage_of(tensor);
  DeviceMemory* memory = device_memory(storage.data_ptr());
  auto spare = memory == nullptr ? at::Tensor() : at::Tensor(memory->take_spare_twin());
  at::Tensor twin = spare.defined() ? std::move(spare) : new_twin(storage, owner.dtype());
  make_like(*twin.unsafeGetTensorImpl(), owner);
  return twin;
}

void keep_twin(const at::Tensor& owner, at::Tensor twin) {
  if (twin.use_count() != 1) {
    return;
  }
  DeviceMemory* memory = device_memory(storage_of(owner).data_ptr());
  if (memory == nullptr || memory->spare_twin.load(std::memory_order_relaxed) != nullptr ||
      memory->shadow.unsafeGetStorageImpl() != &storage_of(twin)) {
    return;
  }
  auto* kept = memory->spare_twin.exchange(
      twin.unsafeReleaseIntrusivePtr().release(), std::memory_order_acq_rel);
  if (kept != nullptr) {
    c10::intrusive_ptr<c10::TensorImpl>::reclaim(kept);
  }
}

void make_virtual(const at::Tensor& result, c10::DeviceIndex device) {
  c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.layout() == at::kStrided && impl.unsafe_storage(),
      "virtual GPUs compute with strided tensors only, but this result has layout ",
      result.layout());
  const c10::Device virtual_device(kDeviceType, device);
  c10::StorageImpl& storage = storage_of(result);
  // If several results share a storage, the first one has already converted it.
  if (storage.device_type() != kDeviceType) {
    const size_t bytes = storage.nbytes();
    auto host = storage.set_data_ptr(c10::DataPtr(nullptr, virtual_device));
    storage.set_data_ptr_noswap(adopt(std::move(host), bytes, device));
    storage.set_allocator(device_allocator());
  }
  impl._change_backend_component_keys(virtual_device);
  TensorWithDevice::set_device(impl, virtual_device);
}

void make_virtual_view(const at::Tensor& view, const at::Tensor& owner) {
  c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(c10::Storage(owner.unsafeGetTensorImpl()->unsafe_storage()));
  impl._change_backend_component_keys(owner.device());
  TensorWithDevice::set_device(impl, owner.device());
}

void update_owner(const at::Tensor& owner, const at::Tensor& twin) {
  c10::StorageImpl& storage = storage_of(owner);
  c10::StorageImpl& shadow = storage_of(twin);
  const bool moved = !shape_only() && shadow.data() != storage.data();
  if (moved || shadow.nbytes() != storage.nbytes()) {
    const size_t bytes = shadow.nbytes();
    c10::DataPtr host;
    if (!shape_only()) {
      host = shadow.set_data_ptr(c10::DataPtr(nullptr, c10::Device(at::kCPU)));
    }
    auto memory = adopt(std::move(host), bytes, owner.device().index());
    move_known(storage, memory, /*is_object=*/owner.scalar_type() == at::kByte);
    storage.set_nbytes(bytes);
    storage.set_data_ptr_noswap(std::move(memory));
  }
  copy_geometry(*twin.unsafeGetTensorImpl(), *owner.unsafeGetTensorImpl());
}

TwinLock::TwinLock(DeviceMemory& memory) : memory_(memory) {
  lock();
}

TwinLock::~TwinLock() {
  unlock();
}

void TwinLock::lock() {
  while (memory_.shadow_lock.test_and_set(std::memory_order_acquire)) {
    std::this_thread::yield(); // the holder may be copying a large allocation
  }
}

void TwinLock::unlock() {
  memory_.shadow_lock.clear(std::memory_order_release);
}

bool TwinLock::wait_for_twins(std::chrono::duration<double> timeout) {
  constexpr auto kPause = std::chrono::microseconds(100);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    // Every twin holds the shadow, including the spare one. After dropping the spare twin, a new
    // one needs the lock.
    memory_.take_spare_twin();
    if (!memory_.shadow || memory_.shadow.use_count() == 1) {
      return true;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    unlock();
    std::this_thread::sleep_for(kPause);
    lock();
  }
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (bytes == impl.nbytes()) {
    return;
  }
  if (C10_UNLIKELY(watches_writes())) {
    note_resize(impl.data());
  }
  auto memory = allocate(bytes, impl.device().index());
  move_known(impl, memory);
  const size_t kept = std::min(bytes, impl.nbytes());
  if (kept > 0 && !shape_only()) { // an empty allocation has a null address, invalid for memcpy
    std::memcpy(memory.get(), impl.data(), kept);
  }
  impl.set_nbytes(bytes);
  impl.set_data_ptr_noswap(std::move(memory));
}

} // namespace anyrig::virtual_gpu
