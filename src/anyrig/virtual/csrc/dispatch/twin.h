// Twins: the host tensors that CPU kernels see in place of virtual ones.
//
//   virtual tensor ──storage──> device memory <──shadow storage── twin
//   (CUDA key, cuda:1)          (memory.h)                        (CPU key, or Meta in ShapeOnly)
//
// A twin has the geometry of its owner and the same bytes, but a storage of its own, the shadow:
// kernels that make views of their arguments would otherwise leave host tensors with device
// storages behind. All twins of one memory share one shadow, so that views stay recognisable.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

#include <chrono>

namespace anyrig::virtual_gpu {

inline bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

// The device kernels run on: the CPU, or Meta in ShapeOnly.
c10::Device kernel_device();

// The twin of a virtual tensor. Of a host tensor: itself, in ShapeOnly a Meta tensor like it.
at::Tensor twin_of(const at::Tensor& tensor);

// Keeps `twin` for the next call that needs a twin of `owner`'s geometry: making one costs more
// than many a small kernel. The twin must have no other user.
void keep_twin(const at::Tensor& owner, at::Tensor twin);

// Turns a fresh result of a kernel into a tensor of `device`, in place and without a copy.
// Raises torch.OutOfMemoryError.
void make_virtual(const at::Tensor& result, c10::DeviceIndex device);

// Makes `view`, which a kernel made of a twin of `owner`, a view of `owner`'s storage.
void make_virtual_view(const at::Tensor& view, const at::Tensor& owner);

// After a kernel wrote to a twin: takes over a new size of its storage and its geometry.
void follow(const at::Tensor& owner, const at::Tensor& twin);

// While one is alive, nobody else gets a new twin of tensors of `memory`: who wants one waits.
class TwinLock {
 public:
  explicit TwinLock(DeviceMemory& memory);
  ~TwinLock();
  TwinLock(const TwinLock&) = delete;
  TwinLock& operator=(const TwinLock&) = delete;

  // Lets go of the lock until no twin is in use. False if one still is after `most`.
  bool wait_for_twins(std::chrono::duration<double> most);

 private:
  void lock();
  void unlock();

  DeviceMemory& memory_;
};

// Sets the size of a virtual storage, which keeps what fits of its contents.
void resize_storage(const c10::Storage& storage, size_t bytes);

} // namespace anyrig::virtual_gpu
