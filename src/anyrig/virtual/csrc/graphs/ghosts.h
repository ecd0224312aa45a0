// Tensors that stand for others in a CUDA graph, which keeps addresses and no memory.
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

// Makes ghosts while a graph is captured. Not locked.
class Ghosts {
 public:
  // A tensor over the same bytes. Of a tensor of the host, or one made of others: itself.
  at::Tensor of(const at::Tensor& tensor);

  // The memory of `tensor` came into being in the capture.
  void note_made(const at::Tensor& tensor);

  // Keeps what `tensor`'s memory holds before the capture first writes there.
  void preserve(const at::Tensor& tensor);
  // Puts back all that was preserved: a capture computes nothing.
  void restore();

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage; // keeps its address from being used anew
    const void* data;
    c10::Storage ghost;
  };
  struct Preserved {
    at::Tensor memory; // a ghost, or a tensor of the host
    at::Tensor bytes;
  };

  // Null for what has no ghost.
  c10::Storage* ghost_of(const at::Tensor& tensor);

  std::unordered_map<c10::StorageImpl*, Known> known_;
  std::unordered_set<const c10::StorageImpl*> made_;
  std::vector<Preserved> preserved_;
  std::unordered_set<const c10::StorageImpl*> preserved_storages_;
};

} // namespace anyrig::virtual_gpu
