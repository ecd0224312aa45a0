// The memory that CUDA's kernels allocate for themselves and free before the operator returns.
//
//   before the results │ results │ after the results, freed in reverse order │ the operator returns
//
// It goes through the caching allocator like a tensor, so it counts in torch.cuda.memory_allocated
// and its peak, and may need a segment of its own. Which operators need how much follows from
// PyTorch's CUDA sources; each function below names its file.
#pragma once

#include "dispatch/arguments.h"

#include <ATen/core/function_schema.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

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
  // Appends the release of an allocation.
  void free(int allocation) {
    steps_.push_back(-1 - allocation);
  }
  // The steps up to here come before the allocation of the results.
  void results_follow() {
    steps_before_results_ = steps_.size();
  }
  void append(const Temporaries& other) {
    const auto first = static_cast<int64_t>(steps_.size());
    for (const int64_t step : other.steps_) {
      steps_.push_back(step < 0 ? step - first : step);
    }
  }

  bool empty() const {
    return steps_.empty();
  }
  size_t steps_before_results() const {
    return steps_before_results_;
  }
  // Each step is the number of bytes to allocate or, if negative, -1 - the number of the step whose
  // allocation to free.
  const c10::SmallVector<int64_t, 4>& steps() const {
    return steps_;
  }

 private:
  c10::SmallVector<int64_t, 4> steps_;
  size_t steps_before_results_ = 0;
};

// Takes the steps of one call on a device.
class TemporaryMemory {
 public:
  TemporaryMemory(Temporaries temporaries, c10::DeviceIndex device)
      : temporaries_(std::move(temporaries)), device_(device) {}

  // Takes the steps before the results. Raises torch.OutOfMemoryError.
  void begin();
  // Takes the other steps. Raises torch.OutOfMemoryError.
  void proceed();
  // Frees what is left, the latest first.
  void end();

 private:
  void take_step(int64_t step);

  Temporaries temporaries_;
  c10::DeviceIndex device_;
  c10::SmallVector<c10::DataPtr, 4> allocations_; // one for each step taken
};

// Computes the temporaries of a call from its arguments, of which the first is a dense tensor of a
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

} // namespace anyrig::virtual_gpu
