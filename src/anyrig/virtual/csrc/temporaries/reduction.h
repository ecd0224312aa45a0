// The temporaries of a reduction that CUDA splits over several blocks.
#pragma once

#include "temporaries/temporaries.h"

#include <ATen/core/TensorBase.h>
#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

// Returns the largest power of 2 up to `number`, and 1 for 0.
int64_t last_power_of_2(int64_t number);

// What a thread accumulates: arg_t of ATen/native/cuda/Reduce.cuh.
enum class Accumulator {
  Sum,            // in the wider dtype of acc_type
  Moments,        // WelfordData: mean, second moment and counts
  Value,          // in the dtype of the input
  TwoValues,      // the smallest and the largest
  ValueAndIndex,  // a value and its 64-bit position
};

struct BlockReduction {
  Accumulator accumulator = Accumulator::Sum;
  int results = 1;
};

// Returns the buffer and the semaphores of reducing `self`, of which only the layout matters, over
// the dimensions `dims`, or over all if `dims` is empty. `in_dtype` is the dtype in which the
// kernel reads `self`; if it differs from the tensor's, CUDA makes a converted copy first.
// `result_dtype` is the first result's.
Temporaries reduction_temporaries(
    const BlockReduction& reduction,
    const at::TensorBase& self,
    at::IntArrayRef dims,
    at::ScalarType in_dtype,
    at::ScalarType result_dtype,
    c10::DeviceIndex device);

// As above for the sum of a tensor in its own dtype, such as a bias gradient.
Temporaries sum_temporaries(
    const at::TensorBase& self,
    at::IntArrayRef dims,
    c10::DeviceIndex device);

} // namespace anyrig::virtual_gpu
