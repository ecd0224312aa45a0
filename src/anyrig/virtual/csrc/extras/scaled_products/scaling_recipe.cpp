#include "extras/scaled_products/scaling_recipe.h"

#include <array>

namespace anyrig::virtual_gpu {

bool ScalingRecipe::is(std::initializer_list<std::pair<ScalingType, at::ScalarType>> parts) const {
  if (scales.size() != parts.size() || scalings.size() != parts.size()) {
    return false;
  }
  size_t i = 0;
  for (const auto& [scaling, dtype] : parts) {
    if (scalings[i] != static_cast<int64_t>(scaling) || scales[i].scalar_type() != dtype) {
      return false;
    }
    ++i;
  }
  return true;
}

std::optional<Scalings> scalings_of_recipes(
    const at::Tensor& a,
    const at::Tensor& b,
    const ScalingRecipe& of_a,
    const ScalingRecipe& of_b) {
  using enum ScalingType;
  if (is_of_four_bits(a) && is_of_four_bits(b)) {
    const auto both = [&](std::initializer_list<std::pair<ScalingType, at::ScalarType>> parts) {
      return of_a.is(parts) && of_b.is(parts);
    };
    if (both({{BlockWise1x16, at::kFloat8_e4m3fn}, {TensorWise, at::kFloat}}) ||
        both({{BlockWise1x16, at::kFloat8_e4m3fn}})) {
      return Scalings(BlockWise1x16, BlockWise1x16);
    }
    return both({{BlockWise1x32, at::kFloat8_e8m0fnu}})
        ? std::optional<Scalings>(Scalings(BlockWise1x32, BlockWise1x32))
        : std::nullopt;
  }
  if (!is_of_eight_bits(a) || !is_of_eight_bits(b)) {
    return std::nullopt;
  }
  const bool are_fine =
      a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn;
  static constexpr std::array<Scalings, 5> wide = {{
      {TensorWise, TensorWise},
      {RowWise, RowWise},
      {BlockWise1x128, BlockWise128x128},
      {BlockWise128x128, BlockWise1x128},
      {BlockWise1x128, BlockWise1x128},
  }};
  for (const auto& [first, second] : wide) {
    const bool by_blocks = first != TensorWise && first != RowWise;
    if ((are_fine || !by_blocks) && of_a.is({{first, at::kFloat}}) &&
        of_b.is({{second, at::kFloat}})) {
      return Scalings(first, second);
    }
  }
  return are_fine && of_a.is({{BlockWise1x32, at::kFloat8_e8m0fnu}}) &&
          of_b.is({{BlockWise1x32, at::kFloat8_e8m0fnu}})
      ? std::optional<Scalings>(Scalings(BlockWise1x32, BlockWise1x32))
      : std::nullopt;
}

} // namespace anyrig::virtual_gpu
