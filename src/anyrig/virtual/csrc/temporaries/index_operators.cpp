// The temporaries of indexing: index_put_ with accumulation sorts its indices, and so does the
// gradient of an embedding; indices on the host are copied to the device first.
// aten/src/ATen/native/TensorAdvancedIndexing.cpp (make_info), and
// {Indexing,Embedding,EmbeddingBackwardKernel}.cu in aten/src/ATen/native/cuda.
//
// Not counted: what turns a mask into indices, since its size depends on values.
#include "temporaries/radix_sort.h"
#include "temporaries/temporaries.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kIndexBytes = 8; // CUDA converts indices to int64
constexpr int64_t kCounterBytes = 8;

int64_t tensor_bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

struct Indexing {
  std::vector<std::optional<at::Tensor>> indices;
  at::DimVector shape; // of all indices, broadcast
  bool has_mask = false;
  bool has_host_index = false;
  bool is_valid = true; // otherwise the kernel raises an error

  explicit Indexing(const c10::IValue& value) : indices(value.toOptionalTensorVector()) {
    for (const auto& index : indices) {
      if (!index.has_value() || !index->defined()) {
        continue;
      }
      has_mask |= index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
      has_host_index |= index->is_cpu();
      is_valid &= has_mask || at::are_expandable(shape, index->sizes());
      if (is_valid && !has_mask) {
        shape = at::infer_size_dimvector(shape, index->sizes());
      }
    }
  }
  // Whether the number of indices is known.
  bool has_counts() const {
    return is_valid && !has_mask;
  }
  bool is_given(size_t i) const {
    return i < indices.size() && indices[i].has_value() && indices[i]->defined();
  }
  int64_t index_bytes() const {
    return c10::multiply_integers(shape) * kIndexBytes;
  }
};

// The copies of indices that are on the host live until the operator returns.
Temporaries copies_of_host_indices(const Indexing& indexing) {
  Temporaries temporaries;
  if (indexing.has_host_index && indexing.has_counts()) {
    for (size_t i = 0; i < indexing.indices.size(); ++i) {
      if (indexing.is_given(i) && indexing.indices[i]->is_cpu()) {
        temporaries.allocate(indexing.index_bytes());
      }
    }
  }
  temporaries.results_follow();
  return temporaries;
}

Temporaries of_index(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return copies_of_host_indices(Indexing(arguments[1]));
}

// wrapIndexOnce: compares the largest and the smallest index with the bounds.
void check_range(Temporaries& temporaries) {
  for (int bound = 0; bound < 2; ++bound) {
    const int extreme = temporaries.allocate(kIndexBytes);
    temporaries.free(temporaries.allocate(1));
    temporaries.free(extreme);
  }
}

// index_put_with_sort_kernel
Temporaries of_sorted_index_put(Arguments arguments, const Indexing& indexing) {
  const auto& self = arguments[0].toTensor();
  const auto& values = arguments[2].toTensor();
  const bool checks_range = arguments.size() > 4 && !arguments[4].toBool();
  const int64_t bytes = indexing.index_bytes();

  Temporaries temporaries;
  if (!self.is_contiguous()) {
    temporaries.allocate(tensor_bytes(self));
  }
  // The position of each element in memory: the sum of index times stride over the dimensions.
  at::DimVector shape; // of the elements written
  bool has_sum = false;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!indexing.is_given(dim)) {
      shape.push_back(self.size(dim));
      continue;
    }
    const bool on_device = !indexing.indices[dim]->is_cpu();
    if (on_device && checks_range && bytes > 0) {
      check_range(temporaries);
    }
    const int wrapped = on_device ? temporaries.allocate(bytes) : -1;
    const int scaled = temporaries.allocate(bytes);
    if (on_device) {
      temporaries.free(wrapped);
    }
    if (has_sum) {
      temporaries.free(scaled);
    } else {
      shape.append(indexing.shape.begin(), indexing.shape.end());
    }
    has_sum = true;
  }
  if (at::is_expandable_to(values.sizes(), shape) && !values.expand(shape).is_contiguous()) {
    temporaries.allocate(
        c10::multiply_integers(shape) * static_cast<int64_t>(values.element_size()));
  }
  if (bytes > 0 && c10::multiply_integers(shape) > 0) {
    for (int i = 0; i < 3; ++i) {
      temporaries.allocate(bytes); // sorted positions, their order, and numbers from 0
    }
    temporaries.allocate(radix_sort_bytes(bytes / kIndexBytes, kIndexBytes));
  }
  return temporaries;
}

Temporaries of_index_put(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const Indexing indexing(arguments[1]);
  const bool sorts = arguments[3].toBool() || at::globalContext().deterministicAlgorithms();
  return sorts && indexing.has_counts() ? of_sorted_index_put(arguments, indexing)
                                     : copies_of_host_indices(indexing);
}

// embedding_dense_backward_cuda and embedding_backward_cuda_kernel
Temporaries of_embedding_backward(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  constexpr int64_t kMostUnsorted = 3072;
  constexpr int64_t kRowsPerThread = 10;
  const auto& gradient = arguments[0].toTensor();
  const auto& indices = arguments[1].toTensor();
  const int64_t count = indices.numel();
  const bool scales = arguments[4].toBool();

  Temporaries temporaries;
  if (!indices.is_contiguous()) {
    temporaries.allocate(tensor_bytes(indices));
  }
  if (!gradient.is_contiguous()) {
    temporaries.allocate(tensor_bytes(gradient));
  }
  if (count == 0 || (count <= kMostUnsorted && !scales)) {
    temporaries.results_follow();
    return temporaries;
  }
  const auto index_bytes = static_cast<int64_t>(indices.element_size());
  temporaries.allocate(count * index_bytes); // the sorted indices
  temporaries.allocate(count * index_bytes); // and where they were
  const int numbers = temporaries.allocate(count * index_bytes);
  temporaries.free(temporaries.allocate(radix_sort_bytes(count, index_bytes)));
  temporaries.free(numbers);
  if (scales) {
    temporaries.allocate(count * index_bytes);
  }
  temporaries.results_follow();
  // A segment is a stretch of equal indices. It is summed in parts of at most ten rows.
  const int64_t segments = std::min(count, arguments[2].toInt());
  const int64_t parts = count / kRowsPerThread + segments;
  const bool is_narrow =
      gradient.scalar_type() == at::kHalf || gradient.scalar_type() == at::kBFloat16;
  const int64_t sum_bytes = is_narrow ? 4 : static_cast<int64_t>(gradient.element_size());
  temporaries.allocate(count * index_bytes); // where the segments begin
  temporaries.allocate(kCounterBytes);
  temporaries.allocate(segments * index_bytes);
  temporaries.allocate(segments * index_bytes);
  temporaries.allocate(kCounterBytes);
  temporaries.allocate(parts * index_bytes);
  temporaries.allocate(parts * gradient.size(-1) * sum_bytes);
  return temporaries;
}

} // namespace

TemporariesOf index_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"index", &of_index},
      {"_unsafe_index", &of_index},
      {"_index_put_impl_", &of_index_put},
      {"embedding_dense_backward", &of_embedding_backward},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
