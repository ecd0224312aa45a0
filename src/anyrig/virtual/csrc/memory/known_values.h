// The values that ShapeOnly knows: tensors copied from the host, and results computed from
// constants and known tensors alone (dispatch/known_call.h). Programs branch on such values: masks,
// positions, sizes and pickled objects that ranks exchange, counters, flags.
//
//   host ──copy──> known ──operator on known tensors──> known ──.item(), copy──> host
//                    │
//                    └── any other write to the memory: forgotten
//
// Values belong to the memory, so all views of it share them. The values of each allocation are
// known up to a byte limit (KnownValues::bytes). Consecutive writes extend the limit, so a single
// number describes what is known. A write of unknown values anywhere in the memory forgets all.
//
// Memory whose values are not known can be forgotten, too: memory that may be written by something
// other than its own tensors (another process, a wrapper around the pointer, a graph's replay) is
// found by its address.
#pragma once

#include "memory/memory.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

// Larger tensors are data, whose values are not kept.
constexpr size_t kMaxKnownBytes = size_t{2} << 20;

// The known values of one allocation. Several threads may write to parts of the allocation, and
// `ValuesInDoubt` forgets from threads of collectives.
class KnownValues final : public c10::intrusive_ptr_target {
 public:
  ~KnownValues() override;

  // Returns the storage if the first `bytes` bytes are known, otherwise an undefined storage.
  c10::Storage known_until(size_t bytes) const;
  // Returns the storage, undefined if nothing is known, and how many of its bytes are known.
  std::pair<c10::Storage, size_t> known_beginning() const;
  // Marks [begin, end) as known and returns the storage to write them to, which has
  // `capacity` bytes. If earlier bytes are unknown, or all memory for values is in use, forgets
  // everything and returns an undefined storage.
  c10::Storage extend(size_t begin, size_t end, size_t capacity);
  // Replaces everything by `values`, whose first `bytes` bytes are known.
  void replace(c10::Storage values, size_t bytes);
  void forget();

 private:
  void drop(c10::Storage& storage);

  mutable std::mutex mutex_;
  c10::Storage storage_; // undefined if nothing is known
  size_t bytes_ = 0;
};

// Returns a CPU tensor that shares the values of a virtual tensor and keeps them alive; an
// undefined tensor if any value is unknown. The caller must not write to it.
at::Tensor known_values(const at::TensorBase& tensor);

// Returns whether `known_values` may return a tensor. Fast.
bool may_be_known(const at::TensorBase& tensor);

// Returns a CPU tensor for the caller to write all values of `tensor` to, and marks them as known.
// If they are too many to keep, forgets them and returns an undefined tensor.
at::Tensor values_to_write(const at::TensorBase& tensor);

// Makes the values of the CPU tensor `values` those of `tensor`, or forgets them: if there are too
// many, or if sizes or dtypes differ. Takes over the memory of `values` if nothing else uses it.
void store_values(const at::TensorBase& tensor, at::Tensor values);

// Marks the values of `tensor` as unknown, after a write whose values are unknown.
void forget_values(const at::TensorBase& tensor, WhyUnknown why);

// Returns why `known_values` returns none, or would if something is forgotten.
WhyUnknown why_unknown(const at::TensorBase& tensor);

// Marks the values of all memory that overlaps these addresses as unknown.
void forget_addresses(uintptr_t begin, uintptr_t end);

// From now on, knows no values of `memory`, because other processes may write to it.
void share_with_processes(DeviceMemory& memory);

// The known values of some tensors, to forget later: from any thread, and whatever the program did
// to the tensors in the meantime.
class ValuesInDoubt {
 public:
  explicit ValuesInDoubt(const std::vector<at::Tensor>& tensors);
  void forget() const;

 private:
  std::vector<c10::intrusive_ptr<KnownValues>> values_;
};

// Makes what is known of `from` known of `to`, which takes its place after a resize. The new bytes of a
// pickled object (`is_object`) are known too, as zeros: ranks pad their objects to one length. All
// other new bytes stay unknown, as they are uninitialized on a GPU.
void move_known_values(const DeviceMemory& from, DeviceMemory& to, bool is_object);

// For memory.cpp: new memory whose values are `host`, and memory that is freed.
void know_all(DeviceMemory& memory, c10::DataPtr host);
void release_known_values(DeviceMemory& memory);

} // namespace anyrig::virtual_gpu
