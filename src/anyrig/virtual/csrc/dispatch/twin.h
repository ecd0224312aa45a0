// Twins: the host tensors that CPU kernels get in place of virtual tensors.
//
//   virtual tensor ──storage──> device memory <──shadow storage── twin
//   (CUDA key, cuda:1)          (memory.h)                        (CPU key, or Meta in ShapeOnly)
//
// A twin has the geometry and the bytes of its owner but a storage of its own, the shadow. If it
// used the owner's storage, kernels that return views of their arguments would create host tensors
// with device storages. All twins of one allocation share one shadow, so views remain recognisable.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

#include <chrono>

namespace anyrig::virtual_gpu {

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

// Returns the device that kernels run on: the CPU, or Meta in ShapeOnly.
c10::Device kernel_device();

// Returns the twin of a virtual tensor. For a host tensor, returns the tensor itself or, in
// ShapeOnly, a Meta tensor of its shape.
at::Tensor twin_of(const at::Tensor& tensor);

// Keeps `twin` for the next call that needs a twin in the memory of `owner`, whatever its geometry,
// since making a twin costs more than many small kernels. Does nothing if `twin` has other
// references.
void keep_twin(const at::Tensor& owner, at::Tensor twin);

// Turns a new result of a kernel into a tensor of `device`, in place and without a copy. Raises
// torch.OutOfMemoryError.
void make_virtual(const at::Tensor& result, c10::DeviceIndex device);

// Makes `view`, a kernel's view of the twin of `owner`, a view of `owner`'s storage.
void make_virtual_view(const at::Tensor& view, const at::Tensor& owner);

// Copies the geometry and storage size of `twin` to `owner`, after a kernel wrote to `twin`.
void update_owner(const at::Tensor& owner, const at::Tensor& twin);

// Holds the lock of `memory`. While it is held, other threads that need a new twin of a tensor in
// `memory` wait.
class TwinLock {
 public:
  explicit TwinLock(DeviceMemory& memory);
  ~TwinLock();
  TwinLock(const TwinLock&) = delete;
  TwinLock& operator=(const TwinLock&) = delete;

  // Releases the lock, repeatedly, until no twin of the memory is in use. Returns false if a twin
  // is still in use after `timeout`. The lock is held again on return.
  bool wait_for_twins(std::chrono::duration<double> timeout);

 private:
  void lock();
  void unlock();

  DeviceMemory& memory_;
};

// Resizes a virtual storage and keeps as much of its contents as fits.
void resize_storage(const c10::Storage& storage, size_t bytes);

} // namespace anyrig::virtual_gpu
