// Products of weights in four bits, and of groups of matrices in eight-bit floats. Checks and their
// texts: aten/src/ATen/native/cuda/int4mm.cu and ScaledBlas.cpp.

#include "operators/cuda_only.h"
#include "operators/optional_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kTileRows = 8;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kThreads = 32;
constexpr int64_t kNumbersInWord = 8;

// A card orders the numbers as its tiles want them. Here they keep their order, in the same sizes:
// nothing but the product reads them.
at::Tensor pack_four_bits(const at::Tensor& weight, int64_t inner_tiles) {
  TORCH_CHECK(weight.dim() == 2, "expected a weight of two dimensions, got ", weight.dim());
  TORCH_CHECK(weight.dtype() == at::kByte, "expected a weight of uint8, got ", weight.dtype());
  TORCH_CHECK(
      inner_tiles == 2 || inner_tiles == 4 || inner_tiles == 8,
      "innerKTiles has to be 2, 4 or 8, got ", inner_tiles);
  const int64_t rows = weight.size(0);
  const int64_t columns = 2 * weight.size(1);
  TORCH_CHECK(
      rows % kTileRows == 0 && columns % (inner_tiles * kTileColumns) == 0,
      "rows have to be a multiple of 8 and columns of ", inner_tiles * kTileColumns, ", got ",
      rows, " x ", columns);
  return weight.clone(at::MemoryFormat::Contiguous)
      .view(at::kInt)
      .view({rows / kTileRows, columns / (inner_tiles * kTileColumns), kThreads, inner_tiles / 2});
}

// `self` (m, k), `scales_and_zeros` (groups of k, n, 2): x stands for (x - 8) * scale + zero.
at::Tensor multiply_four_bits(
    const at::Tensor& self,
    const at::Tensor& packed,
    int64_t group_size,
    const at::Tensor& scales_and_zeros) {
  TORCH_CHECK(self.dtype() == at::kBFloat16, "expected a bfloat16 tensor, got ", self.dtype());
  TORCH_CHECK(packed.dtype() == at::kInt && packed.dim() == 4, "expected a packed weight");
  const int64_t columns = self.size(1);
  const int64_t rows = packed.numel() * kNumbersInWord / columns;
  TORCH_CHECK(
      group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256,
      "qGroupSize has to be 32, 64, 128 or 256, got ", group_size);
  TORCH_CHECK(
      rows == packed.size(0) * kTileRows && scales_and_zeros.dim() == 3 &&
          scales_and_zeros.size(0) == columns / group_size && scales_and_zeros.size(1) == rows &&
          scales_and_zeros.size(2) == 2,
      "expected scales and zeros of [", columns / group_size, ", ", rows, ", 2], got ",
      scales_and_zeros.sizes());
  if (self.is_meta()) {
    return at::empty({self.size(0), rows}, self.options());
  }
  const auto bytes = packed.contiguous().view({-1}).view(at::kByte).view({rows, columns / 2});
  const auto numbers = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, -1)
                           .view({rows, columns / group_size, group_size})
                           .to(at::kFloat) -
      8;
  const auto by_row = scales_and_zeros.transpose(0, 1).to(at::kFloat);
  const auto weight =
      (numbers * by_row.select(2, 0).unsqueeze(-1) + by_row.select(2, 1).unsqueeze(-1))
          .view({rows, columns});
  return at::matmul(self.to(at::kFloat), weight.t()).to(self.scalar_type());
}

struct Range {
  int64_t start;
  int64_t size;
};

std::vector<Range> ranges_of(const at::Tensor& ends) {
  std::vector<Range> ranges;
  int64_t start = 0;
  for (int64_t i = 0; i < ends.numel(); ++i) {
    const auto end = ends[i].item<int64_t>();
    ranges.push_back({start, end - start});
    start = end;
  }
  return ranges;
}

// Each group of (rows, shared) by (shared, columns). Where a matrix has two dimensions, groups are
// parts of it that end at `offs`: of the rows, of the columns, or, if both are such, of what they
// share. Scales are of a row of the first and of a column of the second.
at::Tensor scaled_grouped_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptionalTensor& offs,
    const OptionalTensor& /*bias*/,
    const OptionalTensor& scale_result,
    std::optional<at::ScalarType> out_dtype,
    bool /*use_fast_accum*/) {
  TORCH_CHECK(!is_given(scale_result), "Scale result not supported yet");
  TORCH_CHECK(
      self.dtype() == at::kFloat8_e4m3fn, "Expected mat_a to be Float8_e4m3 matrix got ",
      self.scalar_type());
  TORCH_CHECK(
      mat2.dtype() == at::kFloat8_e4m3fn, "Expected mat_b to be Float8_e4m3 matrix got ",
      mat2.scalar_type());
  const bool parts_a = self.dim() == 2;
  const bool parts_b = mat2.dim() == 2;
  TORCH_CHECK(parts_a || self.dim() == 3, "mat_a has to be 2 or 3d, got ", self.dim());
  TORCH_CHECK(parts_b || mat2.dim() == 3, "mat_b has to be 2 or 3d, got ", mat2.dim());
  TORCH_CHECK(
      is_given(offs) == (parts_a || parts_b),
      "Have to provide offsets for 2d matrix, and no offsets for 3d ones");
  TORCH_CHECK(
      self.size(-1) == mat2.size(-2), "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(
      out_dtype.value_or(at::kBFloat16) == at::kBFloat16,
      "Only bf16 high precision output types are supported for grouped gemm");
  const int64_t groups = is_given(offs) ? offs->numel() : self.size(0);
  const int64_t rows = self.size(-2);
  const int64_t columns = mat2.size(-1);
  const auto options = self.options().dtype(at::kBFloat16);
  const bool is_whole = parts_a != parts_b;
  const auto result = is_whole ? at::zeros({rows, columns}, options)
                               : at::zeros({groups, rows, columns}, options);
  if (self.is_meta()) {
    return result;
  }
  const auto ranges = is_given(offs) ? ranges_of(*offs) : std::vector<Range>();
  const auto a = self.to(at::kFloat);
  const auto b = mat2.to(at::kFloat);
  for (int64_t i = 0; i < groups; ++i) {
    auto left = parts_a ? a : a[i];
    auto right = parts_b ? b : b[i];
    auto left_scale = scale_a.dim() == 2 ? scale_a[i] : scale_a;
    auto right_scale = scale_b.dim() == 2 ? scale_b[i] : scale_b;
    auto place = is_whole ? result : result[i];
    const Range range = ranges.empty() ? Range{} : ranges[i];
    if (parts_a && parts_b) {
      left = left.narrow(1, range.start, range.size);
      right = right.narrow(0, range.start, range.size);
      left_scale = left_scale.narrow(0, i * rows, rows);
      right_scale = right_scale.narrow(0, i * columns, columns);
    } else if (parts_a) {
      left = left.narrow(0, range.start, range.size);
      left_scale = left_scale.narrow(0, range.start, range.size);
      place = place.narrow(0, range.start, range.size);
    } else if (parts_b) {
      right = right.narrow(1, range.start, range.size);
      right_scale = right_scale.narrow(0, range.start, range.size);
      place = place.narrow(1, range.start, range.size);
    }
    place.copy_(
        at::matmul(left, right) * left_scale.unsqueeze(1) * right_scale.unsqueeze(0));
  }
  return result;
}

} // namespace

void add_narrow_products(HostKernels& kernels) {
  add_kernel(kernels, "_convert_weight_to_int4pack", &pack_four_bits);
  add_kernel(kernels, "_weight_int4pack_mm", &multiply_four_bits);
  add_kernel(kernels, "_scaled_grouped_mm", &scaled_grouped_mm);
}

} // namespace anyrig::virtual_gpu
