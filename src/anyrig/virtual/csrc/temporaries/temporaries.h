// The memory that CUDA's kernels allocate for themselves and free before the operator returns.
//
//   before result 0 │ result 0 │ before result 1 │ result 1 │ … │ after them │ the operator returns
//
// What a call has not freed by then is freed in reverse order.
//
// This memory goes through the caching allocator like a tensor, so it counts in
// torch.cuda.memory_allocated and its peak, and may need a segment of its own. PyTorch's CUDA
// sources determine which operators need it, and how much; each function below names its file.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/function_schema.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace anyrig::virtual_gpu {

// The order in which one call allocates and frees. Allocations that it does not free itself are
// freed at the end of the call, the latest first.
class Temporaries {
 public:
  // Appends an allocation of `bytes` and returns its number. An allocation of 0 bytes does nothing.
  int allocate(int64_t bytes) {
    steps_.push_back(bytes);
    return static_cast<int>(steps_.size()) - 1;
  }
  // As above for a workspace that the call does without if it does not fit.
  int allocate_optional(int64_t bytes) {
    optional_.push_back(steps_.size());
    return allocate(bytes);
  }
  // Appends the release of an allocation.
  void free(int allocation) { steps_.push_back(-1 - allocation); }
  // The steps up to here come before the allocation of the results. Called once more for each
  // further result: the steps up to there come before the next one.
  void results_follow() { steps_before_results_.push_back(steps_.size()); }
  // Appends the steps of another list, all before the same result.
  void append(const Temporaries& other) {
    const auto first = static_cast<int64_t>(steps_.size());
    for (const size_t step : other.optional_) {
      optional_.push_back(steps_.size() + step);
    }
    for (const int64_t step : other.steps_) {
      steps_.push_back(step < 0 ? step - first : step);
    }
  }

  // Appends the release of each allocation that is not yet freed, the latest first.
  void free_all() {
    for (int64_t step = static_cast<int64_t>(steps_.size()) - 1; step >= 0; --step) {
      const bool is_freed = std::find(steps_.begin(), steps_.end(), -1 - step) != steps_.end();
      if (steps_[step] > 0 && !is_freed) {
        free(static_cast<int>(step));
      }
    }
  }
  bool empty() const { return steps_.empty(); }
  // The number of steps that come before the allocation of the result at `index`.
  size_t steps_before_result(size_t index) const {
    const size_t last = steps_before_results_.size();
    return last == 0 ? 0 : steps_before_results_[std::min(index, last - 1)];
  }
  bool is_optional(size_t step) const {
    return std::find(optional_.begin(), optional_.end(), step) != optional_.end();
  }
  // Each step is the number of bytes to allocate or, if negative, -1 - the number of the step whose
  // allocation to free.
  const c10::SmallVector<int64_t, 4>& steps() const { return steps_; }

 private:
  c10::SmallVector<int64_t, 4> steps_;
  c10::SmallVector<size_t, 4> steps_before_results_;
  c10::SmallVector<size_t, 2> optional_;
};

// Takes the steps of one call on a device.
class TemporaryMemory {
 public:
  TemporaryMemory(Temporaries temporaries, c10::DeviceIndex device)
      : temporaries_(std::move(temporaries)), device_(device) {}

  // Takes the steps before the result at `index`. Raises torch.OutOfMemoryError.
  void begin_result(size_t index);
  // Takes the steps after the results. Raises torch.OutOfMemoryError.
  void proceed();
  // Frees what is left, the latest first.
  void end();

 private:
  void take_next_step();

  Temporaries temporaries_;
  c10::DeviceIndex device_;
  c10::SmallVector<c10::DataPtr, 4> allocations_; // one for each step taken
};

// Computes the temporaries of a call from its arguments. The first argument is a dense tensor of a
// virtual GPU or a list that begins with one. Called before the kernel runs.
using TemporariesOf = Temporaries (*)(const c10::FunctionSchema&, Arguments);

// Returns the function for an operator of PyTorch, named as in the tables of operator_plan.cpp;
// null if the operator needs no temporaries.
TemporariesOf temporaries_of(const std::string& name);

// The tables of single files.
TemporariesOf reduction_temporaries_of(const std::string& name);
TemporariesOf index_temporaries_of(const std::string& name);
TemporariesOf normalization_temporaries_of(const std::string& name);
TemporariesOf copy_temporaries_of(const std::string& name);
TemporariesOf sort_temporaries_of(const std::string& name);
TemporariesOf scan_temporaries_of(const std::string& name);
TemporariesOf convolution_temporaries_of(const std::string& name);
TemporariesOf library_temporaries_of(const std::string& name);

} // namespace anyrig::virtual_gpu
