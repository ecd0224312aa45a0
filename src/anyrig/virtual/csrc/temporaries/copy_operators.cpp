// Copies that CUDA's kernels make of operands whose layout they cannot read: cuBLAS wants matrices
// with unit stride in one dimension (aten/src/ATen/native/cuda/{Blas.cpp,cuBlasCommonArgs.h}), and
// softmax and layer normalization want contiguous rows ({SoftMax,layer_norm_kernel}.cu).
#include "temporaries/temporaries.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

int64_t copy_bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

bool is_dense_operand(const at::Tensor& tensor, int64_t dimensions) {
  return tensor.layout() == at::kStrided && tensor.dim() == dimensions && tensor.numel() > 0;
}

// prepare_matrix_for_cublas
bool is_readable_matrix(const at::Tensor& matrix) {
  if (matrix.is_non_overlapping_and_dense()) {
    return true;
  }
  const auto sizes = matrix.sizes();
  const auto strides = matrix.strides();
  return (strides[0] == 1 && strides[1] >= std::max<int64_t>(1, sizes[0])) ||
      (strides[1] == 1 && strides[0] >= std::max<int64_t>(1, sizes[1]));
}

// prepare_batch_matrix_for_cublas, for an operand of `rows` by `columns` if the result is not
// transposed.
bool is_readable_batch(
    const at::Tensor& batch,
    bool transposes_result,
    int64_t rows,
    int64_t columns) {
  const auto strides = batch.strides();
  const int64_t fast = strides[transposes_result ? 2 : 1];
  const int64_t leading = strides[transposes_result ? 1 : 2];
  if ((fast == 1 && leading >= std::max<int64_t>(1, rows)) ||
      (leading == 1 && fast >= std::max<int64_t>(1, columns))) {
    return true;
  }
  return batch.is_contiguous() && strides[1] != 0 && strides[2] != 0;
}

Temporaries copies_of_matrices(const at::Tensor& first, const at::Tensor& second) {
  // The result is contiguous, which cuBLAS sees as transposed: it multiplies in the other order.
  Temporaries temporaries;
  for (const auto* matrix : {&second, &first}) {
    if (is_dense_operand(*matrix, 2) && !is_readable_matrix(*matrix)) {
      temporaries.allocate(copy_bytes(*matrix));
    }
  }
  return temporaries;
}

Temporaries copies_of_batches(const at::Tensor& first, const at::Tensor& second) {
  Temporaries temporaries;
  if (!is_dense_operand(first, 3) || !is_dense_operand(second, 3)) {
    return temporaries;
  }
  const int64_t rows = first.size(1), inner = first.size(2), columns = second.size(2);
  const bool transposes = columns > 1; // a contiguous result of one column needs no transposition
  const auto& left = transposes ? second : first;
  const auto& right = transposes ? first : second;
  const int64_t m = transposes ? columns : rows, n = transposes ? rows : columns;
  if (!is_readable_batch(left, transposes, m, inner)) {
    temporaries.allocate(copy_bytes(left));
  }
  if (!is_readable_batch(right, transposes, inner, n)) {
    temporaries.allocate(copy_bytes(right));
  }
  return temporaries;
}

Temporaries of_mm(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return copies_of_matrices(arguments[0].toTensor(), arguments[1].toTensor());
}
Temporaries of_addmm(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return copies_of_matrices(arguments[1].toTensor(), arguments[2].toTensor());
}
Temporaries of_bmm(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return copies_of_batches(arguments[0].toTensor(), arguments[1].toTensor());
}
Temporaries of_baddbmm(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  return copies_of_batches(arguments[1].toTensor(), arguments[2].toTensor());
}

// Copies the first `kCount` arguments if they are not contiguous.
template <int kCount, bool kBeforeResults>
Temporaries of_rows(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  Temporaries temporaries;
  for (int i = 0; i < kCount; ++i) {
    const auto& rows = arguments[i].toTensor();
    if (!rows.is_contiguous()) {
      temporaries.allocate(copy_bytes(rows));
    }
  }
  if (kBeforeResults) {
    temporaries.results_follow();
  }
  return temporaries;
}

// softmax_backward_cuda_out multiplies the gradient by the output first. The product is laid out as
// the gradient, and copied if its rows are strided.
Temporaries of_softmax_backward(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto &gradient = arguments[0].toTensor(), &output = arguments[1].toTensor();
  Temporaries temporaries;
  temporaries.allocate(copy_bytes(gradient));
  if (!gradient.is_contiguous() && gradient.is_non_overlapping_and_dense()) {
    temporaries.allocate(copy_bytes(gradient));
  }
  if (!output.is_contiguous()) {
    temporaries.allocate(copy_bytes(output));
  }
  return temporaries;
}

} // namespace

TemporariesOf copy_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"mm", &of_mm},
      {"addmm", &of_addmm},
      {"addmm_", &of_addmm},
      {"bmm", &of_bmm},
      {"baddbmm", &of_baddbmm},
      {"baddbmm_", &of_baddbmm},
      {"_softmax", &of_rows<1, false>},
      {"_log_softmax", &of_rows<1, false>},
      {"_softmax_backward_data", &of_softmax_backward},
      {"_log_softmax_backward_data", &of_rows<2, false>},
      {"native_layer_norm", &of_rows<1, true>},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
