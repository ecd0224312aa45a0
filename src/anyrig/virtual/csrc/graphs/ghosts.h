// Ghosts: tensors over the memory of captured tensors. A CUDA graph holds only addresses, so it
// keeps ghosts in place of the tensors.
//
//   tensor ──> storage ──> DeviceMemory ──> Block          freed when the program drops it
//                               │
//                               └──> host bytes <──┐
//                                                  │
//   ghost  ──> storage ──> DeviceMemory (no Block) ┘       lives as long as the graph
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace anyrig::virtual_gpu {

// Creates the ghosts of one capture. Not thread-safe.
class Ghosts {
 public:
  // Returns a ghost over the bytes of `tensor`; the tensor itself if it is a CPU tensor or a
  // wrapper of other tensors.
  at::Tensor make_ghost(const at::Tensor& tensor);

  // Records that the memory of `tensor` was allocated during the capture.
  void add_allocated(const at::Tensor& tensor);

  // Saves the content of `tensor`'s memory before the capture first writes to it.
  void preserve(const at::Tensor& tensor);
  // Restores all saved contents, since a capture computes nothing on a GPU.
  void restore();

 private:
  struct Known {
    // A weak reference keeps the address from being reused.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    c10::Storage ghost;
  };
  struct Preserved {
    at::Tensor memory; // a ghost, or a CPU tensor
    at::Tensor bytes;
  };

  // Returns the ghost's storage, created on first use; null if `tensor` has no ghost.
  c10::Storage* ghost_of(const at::Tensor& tensor);

  std::unordered_map<c10::StorageImpl*, Known> known_;
  std::unordered_set<const c10::StorageImpl*> allocated_;
  std::vector<Preserved> preserved_;
  std::unordered_set<const c10::StorageImpl*> preserved_storages_;
};

} // namespace anyrig::virtual_gpu
