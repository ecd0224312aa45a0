// Follows setReduceConfig and gpu_reduce_kernel of ATen/native/cuda/Reduce.cuh, which PyTorch
// installs: a reduction with much work for each result and few results is split over blocks, whose
// partial results meet in a buffer in global memory, guarded by one semaphore for each group of
// blocks.
//
//   each thread   256 inputs or more?  ──no──> one block for each result: no temporaries
//        │ yes
//   blocks for each result, so that all multiprocessors have work
//        └──> buffer: accumulators × results × blocks;  semaphores: 4 bytes × groups
#include "temporaries/reduction.h"

#include "random/random_source.h"

#include <ATen/core/TensorBase.h>
#include <ATen/native/TensorIterator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kMinValuesPerThread = 16;
constexpr int64_t kMaxValuesPerThread = 256;
// No reduction of fewer inputs is split: each of at least 4 threads would have fewer than 256.
constexpr int64_t kFewestSplitInputs = 4 * kMaxValuesPerThread;

int64_t divide_up(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

// The dtype in which sums are accumulated: acc_type and opmath_type.
at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    return at::kFloat;
  }
  return dtype == at::kComplexHalf ? at::kComplexFloat : dtype;
}

int64_t accumulator_bytes(Accumulator accumulator, at::ScalarType dtype) {
  const auto value_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const auto sum_bytes = static_cast<int64_t>(c10::elementSize(accumulation_dtype(dtype)));
  switch (accumulator) {
    case Accumulator::Sum:
      return sum_bytes;
    case Accumulator::Moments:
      return 4 * sum_bytes; // the 32-bit count is padded to the size of the others
    case Accumulator::Value:
      return value_bytes;
    case Accumulator::TwoValues:
      return 2 * value_bytes;
    case Accumulator::ValueAndIndex:
      return 16;
  }
  return sum_bytes;
}

// get_output_vec_size: how many neighbouring results one thread computes.
int64_t results_per_thread(const at::TensorIteratorBase& iterator, int64_t element_bytes) {
  const int input = iterator.noutputs();
  const int first_result_dim = iterator.num_reduce_dims();
  int64_t count = 4;
  const auto limit = [&count](int64_t number) {
    while (number % count != 0) {
      count /= 2;
    }
  };
  limit(iterator.shape()[first_result_dim]);
  for (int i = 0; i < iterator.ndim(); ++i) {
    if (i != first_result_dim) {
      limit(iterator.strides(input)[i] / element_bytes);
    }
  }
  return count;
}

struct Split {
  int64_t buffer_bytes = 0;
  int64_t semaphore_bytes = 0;
};

// setReduceConfig. `offset` is the storage offset of the input, in elements.
Split split_of(
    const BlockReduction& reduction,
    const at::TensorIteratorBase& iterator,
    at::ScalarType dtype,
    int64_t offset,
    c10::DeviceIndex device) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int input = iterator.noutputs();
  const int64_t results = iterator.num_output_elements();
  const int64_t inputs = iterator.numel() / results;
  if (iterator.ndim() == 0 || inputs < kMaxValuesPerThread) {
    return {};
  }
  const auto strides = iterator.strides(input);
  const bool reduces_fastest = iterator.num_reduce_dims() == iterator.ndim() ||
      strides[0] < strides[iterator.num_reduce_dims()];
  int64_t dim0 = reduces_fastest ? inputs : results;
  const int64_t dim1 = reduces_fastest ? results : inputs;
  const int64_t fastest_stride = strides[reduces_fastest ? 0 : iterator.num_reduce_dims()];

  int64_t vector = 1; // output_vec_size
  if (fastest_stride == element_bytes) {
    if (reduces_fastest && dim0 >= 128 && iterator.num_reduce_dims() == 1) {
      // vt0 is 2 for moments. Sums of 16-bit numbers read 8 at once: ReduceSumProdKernel.cu.
      const bool reads_eight = reduction.accumulator == Accumulator::Sum && element_bytes == 2;
      dim0 /= reads_eight ? 8 : reduction.accumulator == Accumulator::Moments ? 2 : 4;
    } else if (!reduces_fastest) {
      vector = results_per_thread(iterator, element_bytes);
      while (offset % vector != 0) {
        vector /= 2;
      }
      dim0 /= vector;
    }
  }

  const int64_t most_threads = (dtype == at::kComplexDouble ? 256 : 512) / vector;
  const int64_t power0 = dim0 < most_threads ? last_power_of_2(dim0) : most_threads;
  const int64_t power1 = dim1 < most_threads ? last_power_of_2(dim1) : most_threads;
  int64_t width = std::min(power0, kWarp);
  const int64_t height = std::min(power1, most_threads / width);
  width = std::min(power0, most_threads / height);

  int64_t input_step = reduces_fastest ? width : 1;
  int64_t result_step = reduces_fastest ? 1 : width;
  const auto values_per_thread = [&] { return divide_up(inputs, input_step); };
  if (values_per_thread() < std::min(height * 16, kMaxValuesPerThread)) {
    return {}; // each warp has a result of its own
  }
  input_step *= height;

  const Multiprocessors gpu = multiprocessors(device);
  const int64_t blocks_on_gpu = gpu.count == std::numeric_limits<uint32_t>::max()
      ? std::numeric_limits<int32_t>::max()
      : int64_t{gpu.count} * (gpu.max_threads / (width * height));
  const int64_t groups = divide_up(results / vector, result_step);
  if (values_per_thread() < kMaxValuesPerThread || groups > blocks_on_gpu) {
    return {};
  }
  const int64_t blocks = std::max(
      std::min(
          divide_up(blocks_on_gpu, groups), divide_up(values_per_thread(), kMinValuesPerThread)),
      divide_up(values_per_thread(), kMaxValuesPerThread));
  if (blocks <= 1) {
    return {};
  }
  const int64_t lanes = reduces_fastest ? 1 : width * vector;
  return {accumulator_bytes(reduction.accumulator, dtype) * results * blocks * lanes, 4 * groups};
}

// Returns a CPU tensor whose elements must not be accessed. An iterator over Meta tensors neither
// joins dimensions, as CUDA's does, nor has the offsets that splitting it writes to.
at::TensorBase without_memory(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    at::ScalarType dtype) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(at::kCPU)));
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

// Returns a tensor in the place of a result, with the reduced dimensions kept.
at::TensorBase placeholder(
    const at::TensorBase& self,
    c10::ArrayRef<bool> is_reduced,
    at::ScalarType dtype) {
  const auto ndim = static_cast<size_t>(self.dim());
  std::vector<int64_t> sizes(ndim, 1);
  std::vector<int64_t> strides(ndim, 0);
  int64_t stride = 1;
  for (size_t i = ndim; i-- > 0;) {
    if (!is_reduced[i]) {
      sizes[i] = self.size(static_cast<int64_t>(i));
      strides[i] = stride;
      stride *= sizes[i];
    }
  }
  return without_memory(sizes, strides, dtype);
}

at::TensorIterator iterate(
    const BlockReduction& reduction,
    const at::TensorBase& input,
    c10::ArrayRef<bool> is_reduced,
    at::ScalarType result_dtype) {
  at::TensorBase first = placeholder(input, is_reduced, result_dtype);
  if (reduction.results == 1) {
    return at::TensorIterator::reduce_op(first, input);
  }
  const bool has_positions = reduction.accumulator == Accumulator::ValueAndIndex;
  at::TensorBase second = placeholder(input, is_reduced, has_positions ? at::kLong : result_dtype);
  return at::TensorIterator::reduce_op(first, second, input);
}

// Returns whether the sizes alone show that each result has too few inputs to be split. A bias gets
// its gradient by such a reduction, and a TensorIterator takes a microsecond to make.
bool is_never_split(const at::TensorBase& self, c10::ArrayRef<bool> is_reduced) {
  int64_t inputs = 1;
  for (size_t i = 0; i < is_reduced.size(); ++i) {
    inputs *= is_reduced[i] ? self.size(static_cast<int64_t>(i)) : 1;
  }
  // A tensor that needs 64-bit indices is reduced in parts.
  constexpr int64_t kMost32BitBytes = int64_t{1} << 31;
  constexpr size_t kLargestElement = 16;
  return inputs < kMaxValuesPerThread && self.is_non_overlapping_and_dense() &&
      self.numel() < kMost32BitBytes / static_cast<int64_t>(kLargestElement);
}

// can_accumulate_in_output
bool accumulates_in_result(
    const BlockReduction& reduction,
    at::ScalarType in_dtype,
    at::ScalarType result_dtype) {
  const bool narrow = in_dtype == result_dtype &&
      (in_dtype == at::kHalf || in_dtype == at::kBFloat16 || in_dtype == at::kComplexHalf);
  return !narrow &&
      (reduction.accumulator == Accumulator::Sum || reduction.accumulator == Accumulator::Value);
}

} // namespace

int64_t last_power_of_2(int64_t number) {
  int64_t power = 1;
  while (2 * power <= number) {
    power *= 2;
  }
  return power;
}

Temporaries reduction_temporaries(
    const BlockReduction& reduction,
    const at::TensorBase& self,
    at::IntArrayRef dims,
    at::ScalarType in_dtype,
    at::ScalarType result_dtype,
    c10::DeviceIndex device) {
  Temporaries temporaries;
  if (self.numel() == 0) {
    return temporaries;
  }
  const bool converts = in_dtype != self.scalar_type();
  if (converts) {
    temporaries.allocate(self.numel() * static_cast<int64_t>(c10::elementSize(in_dtype)));
  }
  if (self.numel() < kFewestSplitInputs) {
    return temporaries;
  }
  c10::SmallVector<bool, 8> is_reduced(self.dim(), dims.empty());
  for (const int64_t dim : dims) {
    is_reduced[c10::maybe_wrap_dim(dim, self.dim())] = true;
  }
  if (is_never_split(self, is_reduced)) {
    return temporaries;
  }
  const auto input = without_memory(self.sizes(), self.strides(), in_dtype);
  const int64_t offset = converts ? 0 : self.storage_offset();
  auto iterator = iterate(reduction, input, is_reduced, result_dtype);
  const auto add_split = [&](const at::TensorIteratorBase& part) {
    const Split split = split_of(reduction, part, in_dtype, offset, device);
    if (split.buffer_bytes > 0) {
      const int buffer = temporaries.allocate(split.buffer_bytes);
      temporaries.free(temporaries.allocate(split.semaphore_bytes));
      temporaries.free(buffer);
    }
  };
  if (iterator.can_use_32bit_indexing()) {
    add_split(iterator);
    return temporaries;
  }
  if (!accumulates_in_result(reduction, in_dtype, result_dtype)) {
    // Parts of the input are reduced one after another, into a buffer of accumulators.
    temporaries.allocate(
        iterator.num_output_elements() * accumulator_bytes(reduction.accumulator, in_dtype));
  }
  for (auto& part : iterator.with_32bit_indexing()) {
    add_split(part);
  }
  return temporaries;
}

Temporaries sum_temporaries(
    const at::TensorBase& self,
    at::IntArrayRef dims,
    c10::DeviceIndex device) {
  return reduction_temporaries({}, self, dims, self.scalar_type(), self.scalar_type(), device);
}

} // namespace anyrig::virtual_gpu
