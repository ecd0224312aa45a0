// Grouped matrix products of 8-bit and 4-bit floats. Checks and their texts:
// aten/src/ATen/native/cuda/GroupedBlas.cpp.

#include "extras/scaled_products/scaled_products.h"

#include "device/device.h"
#include "extras/scaled_products/scaling_recipe.h"
#include "operators/grouped_products.h"
#include "operators/optional_tensor.h"
#include "operators/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>

#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// The scales of one operand for all groups.
struct ScalesOfGroups {
  at::Tensor scales;
  ScalingType scaling;
  OptionalTensor group_scales; // an additional float32 scale for each group
};

// Applies the scales of each group. Swizzled scales must be read group by group, in order.
class GroupScales {
 public:
  explicit GroupScales(const ScalesOfGroups& all) : all_(all) {}

  // Returns `rows` times their scales. `first` is the index of the first row if the groups are
  // parts of one matrix.
  at::Tensor scaled(const at::Tensor& rows, int64_t group, int64_t first) {
    const auto numbers = scaled_numbers(rows, scales_of(rows, group, first), all_.scaling);
    return is_given(all_.group_scales) ? numbers * all_.group_scales->flatten()[group] : numbers;
  }

 private:
  at::Tensor scales_of(const at::Tensor& rows, int64_t group, int64_t first) {
    if (!is_swizzled(all_.scaling)) {
      return all_.scales.dim() == 2 ? all_.scales[group]
                                    : all_.scales.narrow(0, first, rows.size(0));
    }
    const int64_t count = count_swizzled(rows.size(0), numbers_of_row(rows), all_.scaling);
    const auto scales = all_.scales.reshape({-1}).narrow(0, next_, count);
    next_ += count;
    return scales;
  }

  ScalesOfGroups all_;
  int64_t next_ = 0;
};

struct GroupRange {
  int64_t start;
  int64_t size;
};

std::vector<GroupRange> ranges_of(const at::Tensor& ends) {
  std::vector<GroupRange> ranges;
  int64_t start = 0;
  for (int64_t i = 0; i < ends.numel(); ++i) {
    const auto end = ends[i].item<int64_t>();
    ranges.push_back({start, end - start});
    start = end;
  }
  return ranges;
}

// Multiplies (rows, shared) by (shared, columns) for each group. A two-dimensional operand is split
// at `offs`: the first by rows, the second by columns, or both along the shared dimension if both
// are two-dimensional.
at::Tensor multiply_groups(
    const at::Tensor& a,
    const at::Tensor& b,
    const ScalesOfGroups& scales_a,
    const ScalesOfGroups& scales_b,
    const OptionalTensor& offs) {
  auto result = empty_for_groups(a, b, offs, at::kBFloat16);
  if (a.is_meta()) {
    return result;
  }
  result.zero_();
  const bool parts_a = a.dim() == 2;
  const bool parts_b = b.dim() == 2;
  const int64_t packed = is_of_four_bits(a) ? 2 : 1;
  const auto ranges = is_given(offs) ? ranges_of(*offs) : std::vector<GroupRange>();
  GroupScales of_a(scales_a);
  GroupScales of_b(scales_b);
  const int64_t groups = ranges.empty() ? a.size(0) : static_cast<int64_t>(ranges.size());
  for (int64_t i = 0; i < groups; ++i) {
    const GroupRange range = ranges.empty() ? GroupRange{} : ranges[i];
    auto left = parts_a ? a : a[i];
    auto right = (parts_b ? b : b[i]).t();
    auto place = parts_a != parts_b ? result : result[i];
    int64_t first_left = 0;
    int64_t first_right = 0;
    if (parts_a && parts_b) {
      left = left.narrow(1, range.start / packed, range.size / packed);
      right = right.narrow(1, range.start / packed, range.size / packed);
      first_left = i * a.size(0);
      first_right = i * b.size(1);
    } else if (parts_a) {
      left = left.narrow(0, range.start, range.size);
      place = place.narrow(0, range.start, range.size);
      first_left = range.start;
    } else if (parts_b) {
      right = right.narrow(0, range.start, range.size);
      place = place.narrow(1, range.start, range.size);
      first_right = range.start;
    }
    place.copy_(
        at::matmul(of_a.scaled(left, i, first_left), of_b.scaled(right, i, first_right).t()));
  }
  return result;
}

bool is_of_e8m0(const at::Tensor& scale) {
  return scale.scalar_type() == at::kFloat8_e8m0fnu;
}

at::Tensor scaled_grouped_mm(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptionalTensor& offs,
    const OptionalTensor& /*bias*/,
    const OptionalTensor& /*scale_result*/,
    std::optional<at::ScalarType> /*out_dtype*/,
    bool /*use_fast_accum*/) {
  const auto scaling = is_of_e8m0(scale_a) ? ScalingType::BlockWise1x32 : ScalingType::RowWise;
  return multiply_groups(a, b, {scale_a, scaling, {}}, {scale_b, scaling, {}}, offs);
}

at::Tensor scaled_grouped_mm_v2(
    const at::Tensor& a,
    const at::Tensor& b,
    at::TensorList scale_a,
    at::IntArrayRef recipe_a,
    at::IntArrayRef /*swizzle_a*/,
    at::TensorList scale_b,
    at::IntArrayRef recipe_b,
    at::IntArrayRef /*swizzle_b*/,
    const OptionalTensor& offs,
    const OptionalTensor& /*bias*/,
    std::optional<at::ScalarType> /*out_dtype*/,
    at::IntArrayRef /*contraction_dim*/,
    bool /*use_fast_accum*/) {
  const auto scales = [](at::TensorList scale, at::IntArrayRef recipe) {
    return ScalesOfGroups{
        scale[0], static_cast<ScalingType>(recipe[0]),
        scale.size() > 1 ? OptionalTensor(scale[1]) : std::nullopt};
  };
  return multiply_groups(a, b, scales(scale_a, recipe_a), scales(scale_b, recipe_b), offs);
}

void check_groups(
    const at::Tensor& a,
    const at::Tensor& b,
    const c10::IValue& offs,
    const c10::IValue& bias,
    const c10::IValue& out_dtype,
    c10::Device device) {
  const int major = devices()[device.index()].capability_major;
  TORCH_CHECK_VALUE(
      major == 9 || major == 10,
      "torch._scaled_grouped_mm is only supported on CUDA devices with compute capability = [9.0, "
      "10.0], or ROCm MI300+");
  TORCH_CHECK_VALUE(!is_transposed(a), "Expected mat1 to not be transposed");
  TORCH_CHECK_VALUE(is_transposed(b), "Expected mat2 to be transposed");
  TORCH_CHECK_VALUE(a.dim() == 2 || a.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK_VALUE(b.dim() == 2 || b.dim() == 3, "mat_b has to be 2 or 3d");
  const bool has_parts = a.dim() == 2 || b.dim() == 2;
  TORCH_CHECK_VALUE(
      (a.dim() == 2 && b.dim() == 2) || a.size(-1) == b.size(-2),
      "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK_VALUE(
      a.size(-1) % 16 == 0,
      "Expected trailing dimension of mat_a to be divisible by 16 but got mat1 shape: (", a.sizes(),
      ").");
  TORCH_CHECK_VALUE(
      b.size(-2) % 16 == 0 && b.size(-1) % 16 == 0,
      "Expected mat_b shape to be divisible by 16 but got mat_b shape: (", b.sizes(), ").");
  const auto has_tensor = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined();
  };
  TORCH_CHECK_VALUE(!has_tensor(bias), "Bias not supported yet");
  TORCH_CHECK_VALUE(
      has_tensor(offs) == has_parts, "Have to provide offsets if there is a 2d matrix");
  if (has_parts) {
    TORCH_CHECK_VALUE(offs.toTensor().dim() == 1, "offs has to be 1D");
    TORCH_CHECK_VALUE(offs.toTensor().scalar_type() == at::kInt, "Offsets have to be int32");
  }
  TORCH_CHECK_VALUE(
      out_dtype.isNone() || out_dtype.toScalarType() == at::kBFloat16,
      "Only bf16 high precision output types are supported for grouped gemm");
}

// `side` is 0 for the rows of the first operand and 1 for the columns of the second.
void check_scales_of_rows(
    const at::Tensor& matrix,
    const at::Tensor& scale,
    int64_t side,
    int64_t copies) {
  if (matrix.dim() == 2) {
    TORCH_CHECK(
        scale.dim() == 1, "scale must be a 1D tensor, but got ", scale.dim(), "D, arg ", side);
    TORCH_CHECK(scale.is_contiguous(), "scale must be contiguous for arg ", side);
    TORCH_CHECK(
        scale.size(0) == matrix.size(side) * copies,
        "scale must have the same length as mat for arg ", side);
    return;
  }
  TORCH_CHECK(
      scale.dim() == 2, "scale must be a 2D tensor, but got ", scale.dim(), "D for arg ", side);
  TORCH_CHECK(
      scale.stride(1) == 1, "scale must be contiguous in the last dimension for arg ", side);
  TORCH_CHECK(
      scale.size(0) == matrix.size(0), "scale must have the same batch dimension as mat for arg ",
      side);
  TORCH_CHECK(
      scale.size(1) == matrix.size(1 + side),
      "scale must have the same first dimension as mat for arg ", side);
}

void check_scales_of_blocks(
    const at::Tensor& matrix,
    const at::Tensor& scale,
    int64_t side,
    ScalingType scaling) {
  if (matrix.dim() == 2) {
    TORCH_CHECK(
        scale.dim() == 2,
        "for block-scaled, scale must have same number of dimensions as parent tensor, but got "
        "mat.dim() = ",
        matrix.dim(), " and scale.dim() = ", scale.dim(), " for arg ", side);
    TORCH_CHECK(
        scale.size(0) >= matrix.size(side), "for block-scaled, arg ", side, " tensor shape (",
        matrix.size(0), ", ", matrix.size(1), ") must have scale.shape[0] >= ", matrix.size(side),
        " but got scale.shape=(", scale.size(0), ", ", scale.size(1), ")");
    return;
  }
  TORCH_CHECK(
      scale.dim() == 2,
      "for block-scaled 2d-3d grouped GEMM, the 3d tensor of shape (G,K,N) must have a 2d scale of "
      "shape (G, blocked_scale_K * blocked_scale_N),but scale is ",
      scale.dim(), "D for arg ", side);
  const int64_t numbers = matrix.size(1) * (is_of_four_bits(matrix) ? 2 : 1);
  TORCH_CHECK(
      scale.size(0) == matrix.size(0) &&
          scale.size(1) == count_swizzled(matrix.size(2), numbers, scaling),
      "for block-scaled grouped GEMM, the tensor shape (", matrix.size(0), ", ", numbers, ", ",
      matrix.size(2), ") must have scale shape (", matrix.size(0), ",",
      count_swizzled(matrix.size(2), numbers, scaling) / in_whole_tiles(matrix.size(2), 128), ",",
      in_whole_tiles(matrix.size(2), 128), ") for arg ", side, ", got: ", scale.size(0), ", ",
      scale.size(1));
}

int64_t copies_of_rows(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offs) {
  return a.dim() == 2 && b.dim() == 2 ? offs.toTensor().size(0) : 1;
}

void check_fine_floats(const at::Tensor& a, const at::Tensor& b) {
  for (const auto* matrix : {&a, &b}) {
    TORCH_CHECK_VALUE(
        matrix->scalar_type() == at::kFloat8_e4m3fn, "Expected mat_a to be Float8_e4m3 matrix got ",
        matrix->scalar_type());
  }
}

void check_blocks_of_groups(const at::Tensor& a, c10::Device device, const char* format) {
  TORCH_CHECK_VALUE(
      a.dim() == 2, format, " grouped GEMM currently only supports 2d-2d and 2d-3d cases");
  TORCH_CHECK(
      devices()[device.index()].capability_major == 10, format,
      " grouped GEMM is not supported on devices of compute capability below 10.0");
}

// _scaled_grouped_mm(self, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype, …)
void check_scaled_grouped_mm(Arguments arguments, c10::Device device) {
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  const at::Tensor& scale_a = arguments[2].toTensor();
  const at::Tensor& scale_b = arguments[3].toTensor();
  check_groups(a, b, arguments[4], arguments[5], arguments[7], device);
  TORCH_CHECK_VALUE(
      !arguments[6].isTensor() || !arguments[6].toTensor().defined(),
      "Scale result not supported yet");
  const bool of_blocks = is_of_e8m0(scale_a) && is_of_e8m0(scale_b);
  TORCH_CHECK_VALUE(
      of_blocks || (scale_a.scalar_type() == at::kFloat && scale_b.scalar_type() == at::kFloat),
      "For FP8 tensorwise and rowwise, both scales must both be float32 tensors. For MXFP8, scales "
      "must both be float8_e8m0fnu tensors.");
  if (of_blocks) {
    check_scales_of_blocks(a, scale_a, 0, ScalingType::BlockWise1x32);
    check_scales_of_blocks(b, scale_b, 1, ScalingType::BlockWise1x32);
    check_blocks_of_groups(a, device, "MXFP8");
  } else {
    const int64_t copies = copies_of_rows(a, b, arguments[4]);
    check_scales_of_rows(a, scale_a, 0, copies);
    check_scales_of_rows(b, scale_b, 1, copies);
  }
  check_fine_floats(a, b);
}

// _scaled_grouped_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b,
// offs, bias, out_dtype, …)
void check_scaled_grouped_mm_v2(Arguments arguments, c10::Device device) {
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  check_groups(a, b, arguments[8], arguments[9], arguments[10], device);
  const ScalingRecipe of_a{
      arguments[2].toTensorVector(), arguments[3].toIntVector(), arguments[4].toIntVector()};
  const ScalingRecipe of_b{
      arguments[5].toTensorVector(), arguments[6].toIntVector(), arguments[7].toIntVector()};
  const auto scalings = scalings_of_recipes(a, b, of_a, of_b);
  const bool has_gemm = scalings.has_value() &&
      (scalings->first == ScalingType::RowWise || scalings->first == ScalingType::BlockWise1x32 ||
       (scalings->first == ScalingType::BlockWise1x16 && of_a.scales.size() == 2));
  TORCH_CHECK_VALUE(has_gemm, "No gemm implementation was found");
  if (scalings->first == ScalingType::RowWise) {
    const int64_t copies = copies_of_rows(a, b, arguments[8]);
    check_scales_of_rows(a, of_a.scales[0], 0, copies);
    check_scales_of_rows(b, of_b.scales[0], 1, copies);
    check_fine_floats(a, b);
    return;
  }
  check_scales_of_blocks(a, of_a.scales[0], 0, scalings->first);
  check_scales_of_blocks(b, of_b.scales[0], 1, scalings->second);
  check_blocks_of_groups(a, device, is_of_four_bits(a) ? "FP4" : "MXFP8");
  const auto swizzled = static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4);
  TORCH_CHECK_VALUE(
      is_of_four_bits(a) ||
          (of_a.swizzles == std::vector{swizzled} && of_b.swizzles == std::vector{swizzled}),
      "For CUDA MXFP8 grouped gemm, both scale swizzle types must be SWIZZLE_32_4_4");
}

} // namespace

OperatorRecords scaled_group_records() {
  return {
      {{"_scaled_grouped_mm"},
       {.check_limits = check_scaled_grouped_mm,
        .host_kernels = {host_kernel(&scaled_grouped_mm)}}},
      {{"_scaled_grouped_mm_v2"},
       {.check_limits = check_scaled_grouped_mm_v2,
        .host_kernels = {host_kernel(&scaled_grouped_mm_v2)}}},
  };
}

} // namespace anyrig::virtual_gpu
