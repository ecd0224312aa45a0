// Products of two matrices of 8-bit or 4-bit floats. Checks and their texts:
// aten/src/ATen/native/cuda/ScaledBlas.cpp.
//
// More than 400 lines: _scaled_mm infers its scaling from sizes and _scaled_mm_v2 reads it from a
// recipe, and each has its own checks and error messages.

#include "extras/scaled_products/scaled_products.h"

#include "device/device.h"
#include "extras/scaled_products/scaling_recipe.h"
#include "operators/optional_tensor.h"
#include "operators/rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr const char* kUnsupportedByCublas =
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( "
    "ltHandle, computeDesc.descriptor(), Adesc.descriptor(), Bdesc.descriptor(), "
    "Cdesc.descriptor(), Ddesc.descriptor(), preference.descriptor(), 1, &heuristicResult, "
    "&returnedResult)`";

// The first operand, or the transpose of the second.
struct ScaledOperand {
  at::Tensor rows;
  at::Tensor scale;
  ScalingType scaling;
};

struct Epilogue {
  OptionalTensor bias;
  OptionalTensor scale; // for an 8-bit result
  OptionalTensor alpha;
};

bool is_empty_product(const at::Tensor& a, const at::Tensor& b) {
  return a.size(0) == 0 || a.size(1) == 0 || b.size(1) == 0;
}

at::Tensor product_of(
    const ScaledOperand& a,
    const ScaledOperand& b,
    const Epilogue& epilogue,
    at::ScalarType dtype) {
  auto result = at::matmul(
      scaled_numbers(a.rows, a.scale, a.scaling), scaled_numbers(b.rows, b.scale, b.scaling).t());
  if (is_given(epilogue.alpha)) {
    result = result * *epilogue.alpha;
  }
  if (is_given(epilogue.bias)) {
    result = result + epilogue.bias->to(at::kFloat);
  }
  if (is_given(epilogue.scale) && at::isFloat8Type(dtype)) {
    result = result * *epilogue.scale;
  }
  return result.to(dtype);
}

bool has_size_and_stride(const at::Tensor& scale, int64_t dim, int64_t size, int64_t stride) {
  return scale.size(dim) == size && (size <= 1 || scale.stride(dim) == stride);
}

// Returns whether `scale` has the dtype and the sizes to scale `rows`.
bool scales_by(const at::Tensor& rows, const at::Tensor& scale, ScalingType scaling) {
  if (is_swizzled(scaling)) {
    const bool is_1x16 = scaling == ScalingType::BlockWise1x16;
    return (is_of_four_bits(rows) || (!is_1x16 && is_of_eight_bits(rows))) &&
        scale.scalar_type() == (is_1x16 ? at::kFloat8_e4m3fn : at::kFloat8_e8m0fnu) &&
        scale.numel() == count_swizzled(rows.size(0), numbers_of_row(rows), scaling) &&
        scale.is_contiguous();
  }
  if (!is_of_eight_bits(rows) || scale.scalar_type() != at::kFloat) {
    return false;
  }
  const int64_t blocks = tiles_of(rows.size(1), 128);
  switch (scaling) {
    case ScalingType::TensorWise:
      return scale.numel() == 1;
    case ScalingType::RowWise:
      return scale.dim() == 2 && scale.size(0) == rows.size(0) && scale.size(1) == 1 &&
          scale.is_contiguous();
    case ScalingType::BlockWise1x128:
      return scale.dim() == 2 && has_size_and_stride(scale, 0, rows.size(0), 1) &&
          has_size_and_stride(scale, 1, blocks, rows.size(0));
    default:
      return scale.dim() == 2 &&
          has_size_and_stride(scale, 0, tiles_of(rows.size(0), 128), blocks) &&
          has_size_and_stride(scale, 1, blocks, 1);
  }
}

at::Tensor of_transposed(const at::Tensor& scale, ScalingType scaling) {
  return is_swizzled(scaling) || scale.dim() > 2 ? scale : scale.t();
}

std::optional<Scalings> scalings_of_sizes(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  using enum ScalingType;
  static constexpr std::array<Scalings, 7> known = {{
      {TensorWise, TensorWise},
      {RowWise, RowWise},
      {BlockWise128x128, BlockWise1x128},
      {BlockWise1x128, BlockWise128x128},
      {BlockWise1x128, BlockWise1x128},
      {BlockWise1x32, BlockWise1x32},
      {BlockWise1x16, BlockWise1x16},
  }};
  for (const auto& [of_a, of_b] : known) {
    if (scales_by(a, scale_a, of_a) && scales_by(b.t(), of_transposed(scale_b, of_b), of_b)) {
      return Scalings(of_a, of_b);
    }
  }
  return std::nullopt;
}

std::string what_may_be(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  const int64_t m = a.size(0);
  const int64_t k = a.size(1);
  const int64_t n = b.size(1);
  using enum ScalingType;
  return c10::str(
      "Invalid scaling configuration.\n"
      "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.\n"
      "- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be "
      "(",
      m, ", 1) and scale_b should be (1, ", n,
      "), and both should be contiguous.\n"
      "- For BlockWise 1x128 scaling, a and b should be float8, scales should be float, scale_a "
      "should be (",
      m, ", ", tiles_of(k, 128), ") and scale_b should be (", tiles_of(k, 128), ", ", n,
      "), and both should be outer-dim-major.\n"
      "- For BlockWise 128x128 scaling, a and b should be float8, scales should be float, scale_a "
      "should be (",
      tiles_of(m, 128), ", ", tiles_of(k, 128), ") and scale_b should be (", tiles_of(k, 128), ", ",
      tiles_of(n, 128),
      "), and both should be near-inner-dim-major (with "
      "16-byte aligned strides).\n"
      "- For Blockwise 1x32 scaling, a and b should be float8, scales should be float8_e8m0fnu, "
      "scale_a should have ",
      count_swizzled(m, k, BlockWise1x32),
      " elements and scale_b should "
      "have ",
      count_swizzled(n, k, BlockWise1x32),
      " elements, and both should be contiguous.\n"
      "- For Blockwise 1x16 scaling, a and b should be float4 (packed 2x), scales should be "
      "float8_e4m3fn, scale_a should have ",
      count_swizzled(m, 2 * k, BlockWise1x16),
      " elements "
      "and scale_b should have ",
      count_swizzled(n, 2 * k, BlockWise1x16),
      " elements, and both "
      "should be contiguous.\n"
      "Got a.dtype()=",
      a.scalar_type(), ", scale_a.dtype()=", scale_a.scalar_type(),
      ", scale_a.size()=", scale_a.sizes(), ", scale_a.stride()=", scale_a.strides(),
      ", b.dtype()=", b.scalar_type(), ", scale_b.dtype()=", scale_b.scalar_type(),
      ", scale_b.size()=", scale_b.sizes(), " and scale_b.stride()=", scale_b.strides());
}

at::Tensor scaled_mm(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptionalTensor& bias,
    const OptionalTensor& scale_result,
    std::optional<at::ScalarType> out_dtype,
    bool /*use_fast_accum*/) {
  const auto dtype = out_dtype.value_or(a.scalar_type());
  if (a.is_meta() || is_empty_product(a, b)) {
    return at::zeros({a.size(0), b.size(1)}, a.options().dtype(dtype));
  }
  const auto [of_a, of_b] = *scalings_of_sizes(a, b, scale_a, scale_b);
  return product_of(
      {a, scale_a, of_a}, {b.t(), of_transposed(scale_b, of_b), of_b}, {bias, scale_result, {}},
      dtype);
}

at::Tensor& scaled_mm_out(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptionalTensor& bias,
    const OptionalTensor& scale_result,
    std::optional<at::ScalarType> /*out_dtype*/,
    bool use_fast_accum,
    at::Tensor& out) {
  out.resize_({a.size(0), b.size(1)});
  return out.copy_(
      scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out.scalar_type(), use_fast_accum));
}

at::Tensor scaled_mm_v2(
    const at::Tensor& a,
    const at::Tensor& b,
    at::TensorList scale_a,
    at::IntArrayRef recipe_a,
    at::IntArrayRef swizzle_a,
    at::TensorList scale_b,
    at::IntArrayRef recipe_b,
    at::IntArrayRef swizzle_b,
    const OptionalTensor& bias,
    std::optional<at::ScalarType> out_dtype,
    at::IntArrayRef /*contraction_dim*/,
    bool /*use_fast_accum*/) {
  const auto dtype = out_dtype.value_or(a.scalar_type());
  if (a.is_meta() || is_empty_product(a, b)) {
    return at::zeros({a.size(0), b.size(1)}, a.options().dtype(dtype));
  }
  const auto [of_a, of_b] = *scalings_of_recipes(
      a, b, {scale_a.vec(), recipe_a.vec(), swizzle_a.vec()},
      {scale_b.vec(), recipe_b.vec(), swizzle_b.vec()});
  // Scales of 128x128 blocks are passed transposed.
  const auto by_rows = [](const at::Tensor& scale, ScalingType scaling) {
    return scaling == ScalingType::BlockWise128x128 ? scale.t() : scale;
  };
  OptionalTensor alpha;
  if (scale_a.size() > 1) {
    alpha = scale_a[1] * scale_b[1];
  }
  return product_of(
      {a, by_rows(scale_a[0], of_a), of_a}, {b.t(), by_rows(scale_b[0], of_b), of_b},
      {bias, {}, alpha}, dtype);
}

at::Tensor& scaled_mm_v2_out(
    const at::Tensor& a,
    const at::Tensor& b,
    at::TensorList scale_a,
    at::IntArrayRef recipe_a,
    at::IntArrayRef swizzle_a,
    at::TensorList scale_b,
    at::IntArrayRef recipe_b,
    at::IntArrayRef swizzle_b,
    const OptionalTensor& bias,
    std::optional<at::ScalarType> /*out_dtype*/,
    at::IntArrayRef contraction_dim,
    bool use_fast_accum,
    at::Tensor& out) {
  out.resize_({a.size(0), b.size(1)});
  return out.copy_(scaled_mm_v2(
      a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out.scalar_type(),
      contraction_dim, use_fast_accum));
}

// _scaled_mm raises RuntimeError where _scaled_mm_v2 raises ValueError.
#define CHECK_OF_FORM(is_first, condition, ...) \
  if (is_first) {                               \
    TORCH_CHECK(condition, __VA_ARGS__);        \
  } else {                                      \
    TORCH_CHECK_VALUE(condition, __VA_ARGS__);  \
  }

const char* const kUnsupportedGpu =
    "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or "
    "ROCm MI300+";

bool multiplies_narrow_floats(const DeviceFacts& gpu) {
  return gpu.capability_major >= 9 || (gpu.capability_major == 8 && gpu.capability_minor == 9);
}

void check_matrices(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2, "mat1 must be a matrix");
  TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(
      a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
      a.size(1), " and ", b.size(0), "x", b.size(1), ")");
}

void check_sizes_and_dtypes(
    const at::Tensor& a,
    const at::Tensor& b,
    bool use_fast_accum,
    bool is_first) {
  const int64_t packed = !is_first && is_of_four_bits(a) ? 2 : 1;
  CHECK_OF_FORM(
      is_first, packed * a.size(1) % 16 == 0,
      "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (", a.size(0),
      "x", packed * a.size(1), ").");
  CHECK_OF_FORM(
      is_first, packed * b.size(0) % 16 == 0 && b.size(1) % 16 == 0, "mat2 shape (", b.size(0), "x",
      b.size(1), ") must be divisible by 16");
  const char* names[] = {is_first ? "mat1" : "mat_a", is_first ? "mat2" : "mat_b"};
  const at::Tensor* matrices[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    CHECK_OF_FORM(
        is_first, is_of_eight_bits(*matrices[i]) || is_of_four_bits(*matrices[i]), "Expected ",
        names[i], " to be Float8 or Float4_x2 matrix got ", matrices[i]->scalar_type());
  }
  TORCH_CHECK_VALUE(
      a.scalar_type() != at::kFloat8_e5m2 || b.scalar_type() != at::kFloat8_e5m2,
      "Multiplication of two Float8_e5m2 matrices is not supported");
  CHECK_OF_FORM(
      is_first, !use_fast_accum || (!is_of_four_bits(a) && !is_of_four_bits(b)),
      "`use_fast_accum` is not supported when `", names[0], "` or `", names[1],
      "` tensors have the `Float4_e2m1fn_x2` dtype.");
}

void check_bias(const c10::IValue& value, at::ScalarType result, bool is_first) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return;
  }
  const auto dtype = value.toTensor().scalar_type();
  CHECK_OF_FORM(
      is_first, result != at::kFloat, "Bias is not supported when out_dtype is set to Float32");
  CHECK_OF_FORM(
      is_first, dtype == at::kBFloat16 || dtype == at::kHalf,
      "Bias must be BFloat16 or Half, but got ", dtype);
  CHECK_OF_FORM(
      is_first, result != at::kBFloat16 || dtype == at::kBFloat16,
      "Bias must be BFloat16 to compute ", result, " output, but got ", dtype);
  CHECK_OF_FORM(
      is_first, result != at::kHalf || dtype == at::kHalf, "Bias must be Float16 to compute ",
      result, " output, but got ", dtype);
}

// Returns whether PyTorch passes the matrix to cuBLAS as row-major. cuBLAS accepts gaps between
// rows or columns; PyTorch copies any other layout to rows first.
bool is_row_major(const at::Tensor& matrix) {
  if (matrix.is_non_overlapping_and_dense()) {
    return matrix.is_contiguous();
  }
  return matrix.stride(0) != 1 || matrix.stride(1) < std::max<int64_t>(1, matrix.size(0));
}

// Checks the limits of cuBLASLt, and of CUTLASS for row scales that cuBLASLt does not support.
void check_library(
    const at::Tensor& a,
    const at::Tensor& b,
    ScalingType scaling,
    at::ScalarType result,
    const DeviceFacts& gpu) {
  const bool takes_any_layout =
      !is_of_four_bits(a) && (gpu.capability_major == 10 || gpu.capability_major == 11);
  TORCH_CHECK(
      takes_any_layout || (is_row_major(a) && !is_row_major(b)),
      "Only multiplication of row-major and column-major matrices is supported by cuBLASLt");
  const bool is_block_scaled =
      scaling == ScalingType::BlockWise1x128 || scaling == ScalingType::BlockWise128x128;
  const bool is_known = is_block_scaled ? gpu.capability_major == 9
      : is_swizzled(scaling)            ? gpu.capability_major >= 10
                                        : true;
  const bool gives_coarse = result != at::kFloat8_e5m2 || a.scalar_type() == at::kFloat8_e5m2 ||
      b.scalar_type() == at::kFloat8_e5m2;
  TORCH_CHECK(is_known && gives_coarse, kUnsupportedByCublas);
  TORCH_CHECK_VALUE(
      scaling != ScalingType::RowWise || gpu.capability_major == 9 || !at::isFloat8Type(result),
      "Only bf16 and fp16 high precision output types are supported for row-wise scaling.");
}

at::ScalarType dtype_of_result(const at::Tensor& a, const c10::IValue& out_dtype) {
  return out_dtype.isNone() ? a.scalar_type() : out_dtype.toScalarType();
}

void check_rowwise(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  TORCH_CHECK_VALUE(
      scale_a.size(0) == a.size(0) && scale_a.size(1) == 1, "scale_a must have shape [", a.size(0),
      ", 1], got [", scale_a.sizes(), "]");
  TORCH_CHECK_VALUE(
      scale_b.numel() == b.size(1), "scale_b must have ", b.size(1), " Float elements, got ",
      scale_b.numel());
  TORCH_CHECK_VALUE(
      scale_b.stride(1) == 1, "expected scale_b.stride(1) to be 1, but got ", scale_b.stride(1));
}

// Checks scales of 128-number blocks: stored by columns and, for 128x128 blocks, padded to four.
void check_blocks_of_128(
    const at::Tensor& scale,
    const char* name,
    int64_t rows,
    int64_t numbers,
    ScalingType scaling) {
  const bool is_square = scaling == ScalingType::BlockWise128x128;
  const int64_t blocks = tiles_of(numbers, 128);
  const int64_t sizes[] = {
      is_square ? in_whole_tiles(blocks, 4) : rows, is_square ? tiles_of(rows, 128) : blocks};
  TORCH_CHECK_VALUE(
      scale.size(0) == sizes[0] && scale.size(1) == sizes[1], name, " must have shape ", sizes[0],
      " x ", sizes[1], " Float elements, got ", scale.sizes());
  TORCH_CHECK_VALUE(
      scale.stride(0) == 1 &&
          (scale.stride(1) == sizes[0] || (scale.size(1) == 1 && scale.stride(1) == 1)),
      name, " must have strides (1, ", sizes[0], "); got ", scale.strides());
}

void check_swizzled(const ScalingRecipe& recipe, const char* name, int64_t rows, int64_t numbers) {
  const int64_t count = count_swizzled(rows, numbers, static_cast<ScalingType>(recipe.scalings[0]));
  TORCH_CHECK_VALUE(
      recipe.scales[0].numel() == count, "For Blockwise scaling ", name, " should have ", count,
      " elements, got: ", recipe.scales[0].numel());
}

void check_recipes(
    const at::Tensor& a,
    const at::Tensor& b,
    const ScalingRecipe& of_a,
    const ScalingRecipe& of_b,
    const Scalings& scalings,
    const DeviceFacts& gpu) {
  const auto [first, second] = scalings;
  if (first == ScalingType::TensorWise) {
    TORCH_CHECK_VALUE(of_a.scales[0].numel() == 1, "scale_a must have 1 Float element");
    TORCH_CHECK_VALUE(of_b.scales[0].numel() == 1, "scale_b must have 1 Float element");
  } else if (first == ScalingType::RowWise) {
    check_rowwise(a, b, of_a.scales[0], of_b.scales[0]);
  } else if (!is_swizzled(first)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        gpu.capability_major == 9,
        "DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90");
    check_blocks_of_128(of_a.scales[0], "scale_a", a.size(0), a.size(1), first);
    check_blocks_of_128(of_b.scales[0], "scale_b", b.size(1), a.size(1), second);
  } else {
    const size_t count = of_a.scales.size();
    const ScalingRecipe* recipes[] = {&of_a, &of_b};
    const char* swizzles[] = {"swizzle_a", "swizzle_b"};
    for (int i = 0; i < 2; ++i) {
      TORCH_CHECK_VALUE(
          recipes[i]->swizzles.size() == count, swizzles[i], " must have ", count, " values, got ",
          recipes[i]->swizzles.size());
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_of_four_bits(a) || first != ScalingType::BlockWise1x32 || gpu.capability_major == 10,
        "MXFP4 scaling only supported in CUDA for B200/B300");
    check_swizzled(of_a, "scale_a", a.size(0), numbers_of_row(a));
    check_swizzled(of_b, "scale_b", b.size(1), numbers_of_row(a));
    const char* names[] = {"scale_a", "scale_b"};
    for (int i = 0; i < 2; ++i) {
      TORCH_CHECK_VALUE(
          recipes[i]->swizzles[0] == static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4), names[i],
          " must be swizzled to SWIZZLE_32_4_4 format");
    }
    TORCH_CHECK_VALUE(
        of_a.scales[0].is_contiguous() && of_b.scales[0].is_contiguous(),
        "For Blockwise scaling both scales should be contiguous");
  }
}

// _scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
void check_scaled_mm(Arguments arguments, c10::Device device) {
  const DeviceFacts& gpu = devices()[device.index()];
  TORCH_CHECK(multiplies_narrow_floats(gpu), kUnsupportedGpu);
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  const at::Tensor& scale_a = arguments[2].toTensor();
  const at::Tensor& scale_b = arguments[3].toTensor();
  check_matrices(a, b);
  const auto scalings = scalings_of_sizes(a, b, scale_a, scale_b);
  TORCH_CHECK(scalings.has_value(), what_may_be(a, b, scale_a, scale_b));
  if (arguments[5].isTensor() && arguments[5].toTensor().defined()) {
    const at::Tensor& scale_result = arguments[5].toTensor();
    TORCH_CHECK(
        scale_result.numel() == 1 && scale_result.scalar_type() == at::kFloat,
        "scale_result must be a float scalar");
  }
  if (arguments[4].isTensor() && arguments[4].toTensor().defined()) {
    const int64_t numbers = arguments[4].toTensor().numel();
    TORCH_CHECK(numbers == b.size(1), "Bias must be size ", b.size(1), " but got ", numbers);
  }
  check_sizes_and_dtypes(a, b, arguments[7].toBool(), true);
  const auto result = dtype_of_result(a, arguments[6]);
  check_bias(arguments[4], result, true);
  if (!is_empty_product(a, b)) {
    check_library(a, b, scalings->first, result, gpu);
    // Only _scaled_mm_v2 uses CUTLASS, which supports the other scaling.
    TORCH_CHECK(
        !is_of_four_bits(a) || scalings->first == ScalingType::BlockWise1x16, kUnsupportedByCublas);
  }
}

// _scaled_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias,
// out_dtype, contraction_dim, use_fast_accum)
void check_scaled_mm_v2(Arguments arguments, c10::Device device) {
  const DeviceFacts& gpu = devices()[device.index()];
  TORCH_CHECK_NOT_IMPLEMENTED(multiplies_narrow_floats(gpu), kUnsupportedGpu);
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  check_matrices(a, b);
  if (is_empty_product(a, b)) {
    return;
  }
  const ScalingRecipe of_a{
      arguments[2].toTensorVector(), arguments[3].toIntVector(), arguments[4].toIntVector()};
  const ScalingRecipe of_b{
      arguments[5].toTensorVector(), arguments[6].toIntVector(), arguments[7].toIntVector()};
  TORCH_CHECK_VALUE(
      arguments[8].isNone() || !arguments[8].toTensor().defined() ||
          arguments[8].toTensor().numel() == b.size(1),
      "Bias must be size ", b.size(1), " but got ",
      arguments[8].isNone() ? 0 : arguments[8].toTensor().numel());
  check_sizes_and_dtypes(a, b, arguments[11].toBool(), false);
  const auto result = dtype_of_result(a, arguments[9]);
  check_bias(arguments[8], result, false);
  const auto scalings = scalings_of_recipes(a, b, of_a, of_b);
  TORCH_CHECK_VALUE(scalings.has_value(), what_may_be(a, b, of_a.scales[0], of_b.scales[0]));
  check_recipes(a, b, of_a, of_b, *scalings, gpu);
  check_library(a, b, scalings->first, result, gpu);
}

} // namespace

OperatorRecords scaled_product_records() {
  return {
      {{"_scaled_mm"},
       {.check_limits = check_scaled_mm,
        .host_kernels = {host_kernel(&scaled_mm), host_kernel(&scaled_mm_out, "out")},
        .uses_cublas = true}},
      {{"_scaled_mm_v2"},
       {.check_limits = check_scaled_mm_v2,
        .host_kernels = {host_kernel(&scaled_mm_v2), host_kernel(&scaled_mm_v2_out, "out")},
        .uses_cublas = true}},
  };
}

} // namespace anyrig::virtual_gpu
