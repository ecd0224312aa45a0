// The temporaries of indexing: index_put_ with accumulation sorts its indices, and so does the
// gradient of an embedding; masks become indices, and indices on the host are copied to the device
// first. aten/src/ATen/native/TensorAdvancedIndexing.cpp (make_info), and
// {Indexing,IndexKernel,Nonzero,Embedding,EmbeddingBackwardKernel}.cu in aten/src/ATen/native/cuda.
#include "device/override.h"
#include "temporaries/cub.h"
#include "temporaries/selected.h"
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

bool is_index_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

struct IndexTensor {
  at::DimVector sizes;
  bool is_on_host;
};

struct IndexMask {
  at::Tensor tensor;
  int64_t count; // of its true elements
};

// The indices of a call. A mask of k dimensions stands for k indices.
struct Indexing {
  std::vector<std::optional<IndexTensor>> indices;
  std::vector<IndexMask> masks; // on the device
  at::DimVector shape; // of all indices, broadcast
  bool has_host_index = false;
  bool has_counts = true; // otherwise ShapeOnly does not know a mask
  bool is_valid = true; // otherwise the kernel raises an error

  explicit Indexing(const c10::IValue& value) {
    for (const auto& index : value.toOptionalTensorVector()) {
      if (!index.has_value() || !index->defined()) {
        indices.push_back(std::nullopt);
      } else if (is_index_mask(*index)) {
        add_mask(*index);
      } else {
        add(*index, at::DimVector(index->sizes()));
      }
    }
  }
  // Whether the sizes of all indices are known.
  bool has_sizes() const { return is_valid && has_counts; }
  bool is_given(size_t i) const { return i < indices.size() && indices[i].has_value(); }
  int64_t index_bytes() const { return c10::multiply_integers(shape) * kIndexBytes; }

 private:
  void add(const at::Tensor& index, const at::DimVector& sizes) {
    indices.push_back(IndexTensor{sizes, index.is_cpu()});
    has_host_index |= index.is_cpu();
    is_valid &= at::are_expandable(shape, sizes);
    if (is_valid) {
      shape = at::infer_size_dimvector(shape, sizes);
    }
  }
  void add_mask(const at::Tensor& mask) {
    const auto count = count_selected(mask);
    if (!count.has_value()) {
      has_counts = false;
      return;
    }
    if (!mask.is_cpu()) {
      masks.push_back({mask, *count});
    }
    for (int64_t i = 0; i < mask.dim(); ++i) {
      add(mask, {*count});
    }
  }
};

// The copies of indices that are on the host, and the positions of masks, live until the operator
// returns.
Temporaries indices_on_device(const Indexing& indexing) {
  Temporaries temporaries;
  if (indexing.has_sizes()) {
    for (const IndexMask& mask : indexing.masks) {
      find_selected(temporaries, mask.tensor, mask.count);
    }
    for (size_t i = 0; i < indexing.indices.size(); ++i) {
      if (indexing.is_given(i) && indexing.indices[i]->is_on_host) {
        temporaries.allocate(indexing.index_bytes());
      }
    }
  }
  temporaries.results_follow();
  return temporaries;
}

Temporaries of_index(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return indices_on_device(Indexing(arguments[1]));
}

// wrapIndexOnce: compares the largest and the smallest index with the bounds.
void check_range(Temporaries& temporaries) {
  for (int bound = 0; bound < 2; ++bound) {
    const int extreme = temporaries.allocate(kIndexBytes);
    temporaries.free(temporaries.allocate(1));
    temporaries.free(extreme);
  }
}

// Returns how many bits a position among the written slices has: get_num_bits of ATen/cuda/cub.h. The
// dimensions after the indexed ones, or all others if those are apart, belong to a slice.
int64_t position_bits(const at::Tensor& self, const Indexing& indexing) {
  int64_t first = self.dim(), last = -1;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (indexing.is_given(dim)) {
      first = std::min(first, dim);
      last = dim;
    }
  }
  bool are_apart = false;
  for (int64_t dim = first; dim <= last; ++dim) {
    are_apart |= !indexing.is_given(dim);
  }
  int64_t slice = 1;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    slice *= dim > last || (are_apart && !indexing.is_given(dim)) ? self.size(dim) : 1;
  }
  int64_t bits = 1;
  for (int64_t most = (self.numel() - 1) / std::max<int64_t>(slice, 1); most > 1; most /= 2) {
    ++bits;
  }
  return bits;
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
  std::vector<int> positions;
  for (const IndexMask& mask : indexing.masks) {
    positions.push_back(find_selected(temporaries, mask.tensor, mask.count));
  }
  // The position of each element in memory: the sum of index times stride over the dimensions.
  at::DimVector shape; // of the elements written
  bool has_sum = false;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!indexing.is_given(dim)) {
      shape.push_back(self.size(dim));
      continue;
    }
    const bool on_device = !indexing.indices[dim]->is_on_host;
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
  for (const int of_mask : positions) {
    temporaries.free(of_mask);
  }
  if (at::is_expandable_to(values.sizes(), shape) && !values.expand(shape).is_contiguous()) {
    temporaries.allocate(
        c10::multiply_integers(shape) * static_cast<int64_t>(values.element_size()));
  }
  if (bytes > 0 && c10::multiply_integers(shape) > 0) {
    for (int i = 0; i < 3; ++i) {
      temporaries.allocate(bytes); // sorted positions, their order, and numbers from 0
    }
    temporaries.allocate(radix_sort_bytes(
        CubGpu::of(self.device().index()),
        {bytes / kIndexBytes, kIndexBytes, kIndexBytes, position_bits(self, indexing)}));
  }
  return temporaries;
}

Temporaries of_index_put(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  if (puts_by_one_mask(arguments)) {
    return {};
  }
  const Indexing indexing(arguments[1]);
  const bool sorts = arguments[3].toBool() || at::globalContext().deterministicAlgorithms();
  return sorts && indexing.has_sizes() ? of_sorted_index_put(arguments, indexing)
                                       : indices_on_device(indexing);
}

// Whether the parts of few and long segments are added to the gradient as they are summed. An H100
// with PyTorch 2.11 did so, and one with 2.6 did not. Which version began is not known.
bool adds_atomically(const CubGpu& gpu, int64_t segments, int64_t parts, int64_t width) {
  constexpr int64_t kWarp = 32, kLargestBlock = 1024, kBlocksPerMultiprocessor = 4;
  const int64_t threads = (width + kWarp - 1) / kWarp * kWarp;
  const int64_t block = std::min(threads, kLargestBlock);
  const int64_t blocks = block == 0 ? 0 : (segments * threads + block - 1) / block;
  return ANYRIG_TORCH_FROM(11) && blocks < gpu.multiprocessors * kBlocksPerMultiprocessor &&
      parts > 4 * blocks && !at::globalContext().deterministicAlgorithms();
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
  temporaries.free(temporaries.allocate(
      radix_sort_bytes(CubGpu::of(indices.device().index()), {count, index_bytes, index_bytes})));
  temporaries.free(numbers);
  if (scales) {
    temporaries.allocate(count * index_bytes);
  }
  temporaries.results_follow();
  // A segment is a stretch of equal indices. It is summed in parts of at most ten rows.
  const CubGpu gpu = CubGpu::of(indices.device().index());
  const int64_t segments = std::min(count, arguments[2].toInt());
  const int64_t parts = count / kRowsPerThread + segments;
  const int64_t width = gradient.size(-1);
  const bool is_narrow =
      gradient.scalar_type() == at::kHalf || gradient.scalar_type() == at::kBFloat16;
  const int64_t sum_bytes = is_narrow ? 4 : static_cast<int64_t>(gradient.element_size());
  temporaries.allocate(count * index_bytes); // where the segments begin
  temporaries.allocate(kCounterBytes);
  const int unique = temporaries.allocate(count * index_bytes);
  temporaries.free(temporaries.allocate(unique_positions_bytes(gpu, count, index_bytes)));
  temporaries.free(unique);
  temporaries.allocate(segments * index_bytes);
  temporaries.allocate(segments * index_bytes);
  temporaries.free(temporaries.allocate(
      scan_bytes(gpu, segments, index_bytes, /*is_primitive=*/true, /*is_sum=*/false)));
  temporaries.allocate(kCounterBytes);
  temporaries.allocate(parts * index_bytes);
  if (adds_atomically(gpu, segments, parts, width)) {
    temporaries.allocate(parts * index_bytes);
    temporaries.allocate(is_narrow ? arguments[2].toInt() * width * sum_bytes : 0);
  } else {
    temporaries.allocate(parts * width * sum_bytes);
  }
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
  return found == functions.end() ? selection_temporaries_of(name) : found->second;
}

} // namespace anyrig::virtual_gpu
