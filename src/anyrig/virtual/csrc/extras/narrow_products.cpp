// Products with 4-bit weights. Checks and their texts: aten/src/ATen/native/cuda/int4mm.cu.

#include "extras/narrow_products.h"

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

// As PyTorch's TORCH_CHECK without a message.
void check_four_bits(bool holds, const char* condition) {
  TORCH_CHECK(
      holds, "Expected ", condition,
      " to be true, but got false.  (Could this error message be improved?  If so, please report "
      "an enhancement request to PyTorch.)");
}

// CUDA permutes the numbers for its tiles. Here they keep their order in a result of the same size,
// since only the product reads them.
at::Tensor pack_four_bits(const at::Tensor& weight, int64_t inner_tiles) {
  TORCH_CHECK(weight.dim() == 2, "expected a weight of two dimensions, got ", weight.dim());
  TORCH_CHECK(weight.dtype() == at::kByte, "expected a weight of uint8, got ", weight.dtype());
  check_four_bits(
      inner_tiles == 2 || inner_tiles == 4 || inner_tiles == 8,
      "innerKTiles == 2 || innerKTiles == 4 || innerKTiles == 8");
  const int64_t columns = 2 * weight.size(1);
  check_four_bits(
      columns % (inner_tiles * kTileColumns) == 0,
      "isEvenDivisor(in.size(1) * 2, innerKTiles * kKTileSize)");
  const int64_t tiles = (weight.size(0) + kTileRows - 1) / kTileRows;
  const auto whole = at::zeros({tiles * kTileRows, weight.size(1)}, weight.options());
  whole.narrow(0, 0, weight.size(0)).copy_(weight);
  return whole.view(at::kInt).view(
      {tiles, columns / (inner_tiles * kTileColumns), kThreads, inner_tiles / 2});
}

// `self` is (m, k) and `scales_and_zeros` (groups along k, n, 2). A weight x stands for (x - 8) *
// scale + zero.
at::Tensor multiply_four_bits(
    const at::Tensor& self,
    const at::Tensor& packed,
    int64_t group_size,
    const at::Tensor& scales_and_zeros) {
  TORCH_CHECK(self.dtype() == at::kBFloat16, "expected a bfloat16 tensor, got ", self.dtype());
  TORCH_CHECK(packed.dtype() == at::kInt && packed.dim() == 4, "expected a packed weight");
  const int64_t columns = self.size(1);
  const int64_t rows = packed.size(0) * kTileRows;
  check_four_bits(
      packed.numel() * kNumbersInWord == rows * columns,
      "B.size(1) == k / (B_innerKTiles * kKTileSize)");
  check_four_bits(
      group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256,
      "qGroupSize == 32 || qGroupSize == 64 || qGroupSize == 128 || qGroupSize == 256");
  TORCH_CHECK(
      scales_and_zeros.dim() == 3 && scales_and_zeros.size(0) == columns / group_size &&
          scales_and_zeros.size(1) == rows && scales_and_zeros.size(2) == 2,
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

} // namespace

OperatorRecords narrow_product_records() {
  return {
      {{"_convert_weight_to_int4pack"}, {.host_kernels = {host_kernel(&pack_four_bits)}}},
      {{"_weight_int4pack_mm"}, {.host_kernels = {host_kernel(&multiply_four_bits)}}},
  };
}

} // namespace anyrig::virtual_gpu
