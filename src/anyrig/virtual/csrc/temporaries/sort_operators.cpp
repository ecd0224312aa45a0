// The temporaries of sorting: {Sort.cpp,SortStable.cu,TensorTopK.cpp,TensorTopK.cu,UniqueCub.cu} in
// aten/src/ATen/native/cuda. Up to 4096 elements are sorted in place, without temporaries.
#include "device/override.h"
#include "temporaries/cub.h"
#include "temporaries/temporaries.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kSortedPositionBytes = 8;
constexpr int64_t kLongestSortedInPlace = 4096;
constexpr int64_t kMostSorted = std::numeric_limits<int>::max();

int64_t key_bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.element_size());
}

// Returns the dimension that an operator works along.
int64_t sorted_dimension(const c10::FunctionSchema& schema, Arguments arguments) {
  const int64_t dim = arguments[*schema.argumentIndexWithName("dim")].toInt();
  return c10::maybe_wrap_dim(dim, arguments[0].toTensor().dim());
}

// infer_dense_strides_dim_last of ATen/native/Sorting.cpp: `dim` is the fastest dimension, and the
// others keep their order.
std::vector<int64_t> strides_with_last(const at::Tensor& self, int64_t dim) {
  std::vector<int64_t> order(self.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return (a == dim ? -1 : self.stride(a)) > (b == dim ? -1 : self.stride(b));
  });
  std::vector<int64_t> strides(self.dim());
  int64_t stride = 1;
  for (auto place = order.rbegin(); place != order.rend(); ++place) {
    strides[*place] = stride;
    stride *= self.size(*place);
  }
  return strides;
}

// launch_stable_sort_kernel: one sort for each row if there are few or long ones, otherwise all rows
// at once. Few short rows are sorted as a whole and then by row.
void sort_rows(
    Temporaries& steps,
    const CubGpu& gpu,
    int64_t count,
    int64_t row,
    int64_t key_bytes) {
  constexpr int64_t kLongRow = 1'000'000;
  constexpr int64_t kFewRows = 128;
  const int64_t at_once = std::min(count, kMostSorted) / row * row;
  for (int64_t left = count; left > 0; left -= at_once) {
    const int64_t part = std::min(left, at_once);
    const int64_t rows = part / row;
    if (rows == 1 || row >= kLongRow) {
      const int positions = steps.allocate(row * kSortedPositionBytes);
      for (int64_t i = 0; i < rows; ++i) {
        steps.free(steps.allocate(radix_sort_bytes(gpu, {row, key_bytes, kSortedPositionBytes})));
      }
      steps.free(positions);
    } else if (rows < kFewRows) {
      const int places = steps.allocate(part * kSortedPositionBytes);
      const int sorted_places = steps.allocate(part * kSortedPositionBytes);
      const int sorted_keys = steps.allocate(part * key_bytes);
      steps.free(steps.allocate(radix_sort_bytes(gpu, {part, key_bytes, kSortedPositionBytes})));
      steps.free(sorted_keys);
      const auto row_bits = static_cast<int64_t>(std::ceil(std::log2(static_cast<double>(rows))));
      steps.free(steps.allocate(radix_sort_bytes(gpu, {part, kSortedPositionBytes, 0, row_bits})));
      steps.free(sorted_places);
      steps.free(places);
    } else {
      const int positions = steps.allocate(part * kSortedPositionBytes);
      steps.free(steps.allocate(segmented_sort_bytes({part, key_bytes, kSortedPositionBytes})));
      steps.free(positions);
    }
  }
}

// sort_cuda_kernel, which sorts along a dimension of stride 1.
void sort_along(Temporaries& steps, const at::Tensor& self, int64_t dim, bool dense_results) {
  if (self.numel() == 0) {
    return;
  }
  const int64_t row = self.size(dim);
  if (row <= kLongestSortedInPlace) {
    steps.free(steps.allocate(row * kSortedPositionBytes)); // numbers from 0
    return;
  }
  const CubGpu gpu = CubGpu::of(self.device().index());
  const int64_t bytes = self.numel() * key_bytes_of(self);
  const bool copies = !(dense_results && self.stride(dim) == 1);
  int input = -1, values = -1, positions = -1;
  if (copies) {
    input = steps.allocate(bytes);
    const auto result_strides = self.is_non_overlapping_and_dense()
        ? self.strides().vec()
        : at::infer_dense_strides(self.sizes(), self.strides());
    if (result_strides != strides_with_last(self, dim)) {
      values = steps.allocate(bytes);
      positions = steps.allocate(self.numel() * kSortedPositionBytes);
    }
  }
  sort_rows(steps, gpu, self.numel(), row, key_bytes_of(self));
  for (const int copy : {positions, values, input}) {
    if (copy >= 0) {
      steps.free(copy);
    }
  }
}

Temporaries of_sort(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  Temporaries steps;
  if (self.dim() > 0) {
    sort_along(
        steps, self, sorted_dimension(schema, arguments), self.is_non_overlapping_and_dense());
  }
  return steps;
}

// should_use_multiblock of TensorTopK.cu
bool selects_with_several_blocks(int64_t rows, int64_t row) {
  return (rows <= 20 && row >= 20000) || (rows > 20 && rows <= 40 && row >= 10000) ||
      (rows > 40 && rows <= 80 && row >= 8000) || (rows > 80 && rows < 200 && row >= 5000) ||
      (rows >= 200 && rows < 800 && row >= 3000) || (rows >= 800 && rows <= 4000 && row >= 800) ||
      (rows > 4000 && row >= 400);
}

// mbtopk::launch: counts of digits for each block, from which the k-th value follows. From 2.11 on,
// a kernel of its own sums the counts, where before the last block of a row did.
void select_with_several_blocks(
    Temporaries& steps,
    const CubGpu& gpu,
    int64_t rows,
    int64_t row,
    int64_t key_bytes) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kDigits = 256;
  constexpr int64_t kBlocksPerMultiprocessor = 6; // by registers
  constexpr bool kSumsApart = ANYRIG_TORCH_FROM(11);
  const int64_t threads = gpu.multiprocessors * kBlocksPerMultiprocessor * kThreads;
  const int64_t items = std::clamp<int64_t>((rows * row + threads - 1) / threads, 4, 64);
  const int64_t blocks = rows * ((row + items * kThreads - 1) / (items * kThreads));
  const int64_t digit_bytes = std::max<int64_t>(4, key_bytes);
  steps.allocate(rows * key_bytes);
  if (!kSumsApart) {
    steps.allocate(rows * 4); // semaphores
  }
  steps.allocate(2 * rows * 4);
  steps.allocate(2 * rows * digit_bytes);
  steps.allocate(blocks * kDigits * 2);
  if (kSumsApart) {
    steps.allocate(rows * kDigits * 4);
  }
  steps.allocate(blocks * 4);
  steps.allocate(blocks * 4);
  steps.free(steps.allocate(sum_by_key_bytes(blocks)));
  steps.free(steps.allocate(sum_by_key_bytes(blocks)));
}

Temporaries of_topk(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const int64_t k = arguments[1].toInt();
  Temporaries steps;
  if (self.dim() == 0 || self.numel() == 0 || k <= 0) {
    return steps;
  }
  const int64_t dim = sorted_dimension(schema, arguments);
  const int64_t row = self.size(dim);
  const int64_t rows = self.numel() / row;
  const CubGpu gpu = CubGpu::of(self.device().index());
  if (!self.is_contiguous()) {
    steps.allocate(self.numel() * key_bytes_of(self));
  }
  if (selects_with_several_blocks(rows, row)) {
    select_with_several_blocks(steps, gpu, rows, row, key_bytes_of(self));
  }
  steps.free_all();
  const bool sorts = arguments[4].toBool() && k * rows > 1 && k > kLongestSortedInPlace;
  if (sorts) {
    const int positions = steps.allocate(k * rows * kSortedPositionBytes);
    const int values = steps.allocate(k * rows * key_bytes_of(self));
    if (dim == self.dim() - 1) {
      sort_rows(steps, gpu, k * rows, k, key_bytes_of(self));
    }
    steps.free(steps.allocate(k * rows * kSortedPositionBytes)); // the positions in the new order
    steps.free(values);
    steps.free(positions);
  }
  return steps;
}

// UniqueCub. The results come after the sort; their memory on a GPU is that of the input's elements,
// here that of the unique ones.
Temporaries count_unique(const at::Tensor& self, bool is_sorted, bool inverts, bool counts) {
  Temporaries steps;
  const int64_t count = self.numel();
  if (count == 0 || self.scalar_type() == at::kBool) {
    return steps;
  }
  const CubGpu gpu = CubGpu::of(self.device().index());
  const int64_t bytes = key_bytes_of(self);
  if (!self.is_contiguous()) {
    steps.allocate(count * bytes);
  }
  if (!is_sorted) {
    steps.allocate(count * bytes);
    if (inverts) {
      const int range = steps.allocate(count * kSortedPositionBytes);
      steps.allocate(count * kSortedPositionBytes);
      steps.free(steps.allocate(radix_sort_bytes(gpu, {count, bytes, kSortedPositionBytes})));
      steps.free(range);
    } else {
      steps.free(steps.allocate(radix_sort_bytes(gpu, {count, bytes, 0})));
    }
  }
  steps.results_follow();
  if (inverts) {
    const int places = steps.allocate(count * (is_sorted ? 4 : kSortedPositionBytes));
    steps.free(steps.allocate(scan_bytes(gpu, count, 4, /*is_primitive=*/true, /*is_sum=*/true)));
    steps.free(places);
  }
  steps.allocate(kSortedPositionBytes); // the number of results
  steps.free(steps.allocate(counts ? run_length_bytes(count) : unique_bytes(gpu, count, bytes)));
  return steps;
}

// _unique2(self, sorted, return_inverse, return_counts), and without the last argument _unique
Temporaries of_unique(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const bool counts = arguments.size() > 3 && arguments[3].toBool();
  return count_unique(arguments[0].toTensor(), false, arguments[2].toBool(), counts);
}

// unique_consecutive(self, return_inverse, return_counts, dim)
Temporaries of_unique_consecutive(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  if (!arguments[3].isNone()) {
    return {};
  }
  return count_unique(arguments[0].toTensor(), true, arguments[1].toBool(), arguments[2].toBool());
}

} // namespace

TemporariesOf sort_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"sort", &of_sort},
      {"topk", &of_topk},
      {"_unique", &of_unique},
      {"_unique2", &of_unique},
      {"unique_consecutive", &of_unique_consecutive},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
