// The scaling that a list of ScalingType values, with one tensor each, describes.
#pragma once

#include "extras/scaled_products/scaling.h"

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

// The scaling of the first and of the second operand.
using Scalings = std::pair<ScalingType, ScalingType>;

struct ScalingRecipe {
  std::vector<at::Tensor> scales;
  std::vector<int64_t> scalings;
  std::vector<int64_t> swizzles;

  bool is(std::initializer_list<std::pair<ScalingType, at::ScalarType>> parts) const;
};

// Returns none if CUDA has no kernel for the two recipes.
std::optional<Scalings> scalings_of_recipes(
    const at::Tensor& a,
    const at::Tensor& b,
    const ScalingRecipe& of_a,
    const ScalingRecipe& of_b);

} // namespace anyrig::virtual_gpu
