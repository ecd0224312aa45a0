#include "extras/scaled_products/scaling.h"

#include "operators/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kTileOfRows = 128;
constexpr int64_t kTileOfScales = 4;
constexpr int64_t kSquare = 128;

int64_t numbers_of_scale(ScalingType scaling) {
  return scaling == ScalingType::BlockWise1x16 ? 16 : 32;
}

at::Tensor wide_numbers(const at::Tensor& rows) {
  if (!is_of_four_bits(rows)) {
    return rows.to(at::kFloat);
  }
  const auto bytes = rows.view(at::kByte);
  const auto codes =
      at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1).flatten(1);
  const auto values = at::tensor(
      {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0},
      at::kFloat);
  return values.index_select(0, codes.flatten().to(at::kLong)).view(codes.sizes());
}

at::Tensor unswizzled(const at::Tensor& scale, int64_t rows, int64_t numbers, ScalingType scaling) {
  const int64_t scales = tiles_of(numbers, numbers_of_scale(scaling));
  const int64_t down = tiles_of(rows, kTileOfRows);
  const int64_t across = tiles_of(scales, kTileOfScales);
  return scale.to(at::kFloat)
      .reshape({down, across, kTileOfRows / 4, 4, kTileOfScales})
      .permute({0, 3, 2, 1, 4})
      .reshape({down * kTileOfRows, across * kTileOfScales});
}

at::Tensor spread_over(const at::Tensor& scale, int64_t block, int64_t dim, int64_t size) {
  return scale.repeat_interleave(block, dim).narrow(dim, 0, size);
}

at::Tensor scales_of_numbers(
    const at::Tensor& scale,
    int64_t rows,
    int64_t numbers,
    ScalingType scaling) {
  switch (scaling) {
    case ScalingType::TensorWise:
      return scale.reshape({1, 1});
    case ScalingType::RowWise:
      return scale.reshape({rows, 1});
    case ScalingType::BlockWise1x128:
      return spread_over(scale, kSquare, 1, numbers);
    case ScalingType::BlockWise128x128:
      return spread_over(spread_over(scale, kSquare, 0, rows), kSquare, 1, numbers);
    default:
      return spread_over(
          unswizzled(scale, rows, numbers, scaling).narrow(0, 0, rows), numbers_of_scale(scaling),
          1, numbers);
  }
}

} // namespace

bool is_swizzled(ScalingType scaling) {
  return scaling == ScalingType::BlockWise1x16 || scaling == ScalingType::BlockWise1x32;
}

int64_t count_swizzled(int64_t rows, int64_t numbers, ScalingType scaling) {
  return in_whole_tiles(rows, kTileOfRows) *
      in_whole_tiles(tiles_of(numbers, numbers_of_scale(scaling)), kTileOfScales);
}

at::Tensor scaled_numbers(const at::Tensor& rows, const at::Tensor& scale, ScalingType scaling) {
  const auto numbers = wide_numbers(rows);
  return numbers * scales_of_numbers(scale, numbers.size(0), numbers.size(1), scaling);
}

} // namespace anyrig::virtual_gpu
