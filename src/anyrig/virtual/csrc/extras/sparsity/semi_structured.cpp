// Matrices that keep two of every four numbers, or one of every two in float32. A 4-bit code gives
// the positions: the lower two bits for the first number, the upper two for the second, in quarters
// of the group that the code describes. The products here restore the whole matrix.
//
// Checks and their texts: aten/src/ATen/native/sparse/cuda/SparseSemiStructuredOps.cu,
// SparseSemiStructuredLinear.cu and cuSPARSELtOps.cpp.
//
// Longer than 400 lines: CUTLASS's and cuSPARSELt's operators share the codes and their restoration.

#include "extras/sparsity/semi_structured.h"

#include "device/device.h"
#include "operators/optional_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <functional>
#include <string_view>

namespace anyrig::virtual_gpu {
namespace {

using Code = uint32_t;
using CodeOf = std::function<Code(int64_t row, int64_t column)>;

int64_t numbers_of_code(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2 : 4;
}

bool is_in_bytes(const at::Tensor& tensor) {
  return tensor.element_size() == 1;
}

// Returns the whole matrix for the kept numbers, (rows, columns / 2).
at::Tensor restore(const at::Tensor& kept, const CodeOf& code_of) {
  const int64_t numbers = numbers_of_code(kept.scalar_type());
  const int64_t kept_of_code = numbers / 2;
  const auto places = at::empty(kept.sizes(), at::kLong);
  auto place = places.accessor<int64_t, 2>();
  for (int64_t row = 0; row < kept.size(0); ++row) {
    for (int64_t column = 0; column < kept.size(1) / kept_of_code; ++column) {
      const Code code = code_of(row, column);
      for (int64_t i = 0; i < kept_of_code; ++i) {
        const int64_t quarter = (code >> (2 * i)) & 3;
        place[row][column * kept_of_code + i] = column * numbers + quarter * numbers / 4;
      }
    }
  }
  // Scatter the raw bits: the CPU kernel has no float8. Add them, since after pruning to one number
  // in a group the second is zero and may have the same position.
  const auto bits = is_in_bytes(kept) ? kept.view(at::kChar) : kept;
  return at::zeros({kept.size(0), 2 * kept.size(1)}, bits.options())
      .scatter_add(1, places, bits)
      .view(kept.scalar_type());
}

// Reads codes by memory offset, as CUDA does: metadata has the shape (rows, words), or (rows, 2,
// words / 2) after pruning.
template <class Word>
CodeOf codes_in_words(const at::Tensor& meta) {
  constexpr int64_t codes = sizeof(Word) * 2;
  return [meta](int64_t row, int64_t column) {
    const auto place =
        place_of_word(row, column / codes, meta.size(0), sizeof(Word) == sizeof(int16_t));
    return static_cast<Code>(meta.const_data_ptr<Word>()[place]) >> (column % codes * 4) & 15;
  };
}

at::Tensor restore_from_words(const at::Tensor& kept, const at::Tensor& meta) {
  const int64_t codes = kept.size(1) * 2 / numbers_of_code(kept.scalar_type());
  const int64_t words = codes / (2 * meta.element_size());
  TORCH_CHECK(
      meta.numel() == kept.size(0) * words && meta.is_non_overlapping_and_dense() &&
          words % 2 == 0 && kept.size(0) % (is_in_bytes(kept) ? 16 : 32) == 0,
      "metadata of shape ", meta.sizes(), " does not match ", kept.sizes(), " kept numbers");
  return restore(
      kept, is_in_bytes(kept) ? codes_in_words<int32_t>(meta) : codes_in_words<int16_t>(meta));
}

at::Tensor multiply_whole(const at::Tensor& matrix, const at::Tensor& other) {
  const auto dtype = matrix.scalar_type() == at::kChar ? at::kInt : at::kFloat;
  return at::matmul(matrix.to(dtype), other.to(dtype));
}

at::Tensor round_to(const at::Tensor& tensor, at::ScalarType dtype) {
  return dtype == at::kChar ? tensor.clamp(-128, 127).to(dtype) : tensor.to(dtype);
}

at::Tensor product_with_sum(
    const at::Tensor& sum,
    const at::Tensor& kept,
    const at::Tensor& meta,
    const at::Tensor& other,
    const at::Scalar& alpha,
    const at::Scalar& beta,
    std::optional<at::ScalarType> out_dtype) {
  const auto dtype = out_dtype.value_or(other.scalar_type());
  if (other.is_meta()) {
    return at::empty({kept.size(0), other.size(1)}, other.options().dtype(dtype));
  }
  auto result = multiply_whole(restore_from_words(kept, meta), other) * alpha;
  if (sum.defined() && sum.numel() > 0) {
    result = result + beta * sum.to(result.scalar_type()).unsqueeze(1);
  }
  return round_to(result, dtype);
}

at::Tensor semi_structured_mm(
    const at::Tensor& kept,
    const at::Tensor& meta,
    const at::Tensor& other,
    std::optional<at::ScalarType> out_dtype) {
  return product_with_sum({}, kept, meta, other, 1, 0, out_dtype);
}

// Multiplies (…, shared) by the transposed weight. CUDA returns the transpose of a matrix.
at::Tensor semi_structured_linear(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& meta,
    const OptionalTensor& bias,
    std::optional<std::string_view> activation,
    std::optional<at::ScalarType> out_dtype) {
  const auto name = activation.value_or("none");
  TORCH_CHECK(
      name == "none" || name == "relu" || name == "silu",
      "two_four_sgemm_cutlass_dispatch_layouts_activation: Activation \"", name,
      "\" is not supported for given input tensors");
  const auto dtype =
      out_dtype.value_or(input.scalar_type() == at::kChar ? at::kInt : input.scalar_type());
  auto result = product_with_sum(
      is_given(bias) ? *bias : at::Tensor(), weight, meta, input.reshape({-1, input.size(-1)}).t(),
      1, 1, dtype);
  if (name != "none") {
    result = name == "relu" ? at::relu(result) : at::silu(result);
  }
  auto sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  return result.t().reshape(sizes);
}

// Returns the positions of the first two nonzero numbers, completed with positions of zeros.
std::array<int64_t, 2> places_to_keep(const bool* is_number, int64_t numbers) {
  std::array<int64_t, 2> places{};
  int64_t found = 0;
  for (int64_t i = 0; i < 4 && found < 2; ++i) {
    if (is_number[i * numbers / 4]) {
      places[found++] = i;
    }
  }
  if (found == 0) {
    return {2, 3};
  }
  if (found == 1) {
    return places[0] == 3 ? std::array<int64_t, 2>{2, 3}
                          : std::array<int64_t, 2>{places[0], places[0] + 1};
  }
  return places;
}

// cuSPARSELt's order of the codes is not documented. Here the codes follow the numbers, two in a
// byte. A code takes a sixteenth of the matrix's elements, and two of elements of one byte. On
// GPUs of capability 9 the codes are tiles of 64 rows (TensorEAtom of CUTLASS's sm90 sparse
// configuration), so fewer rows take more columns.
at::Tensor compress(const at::Tensor& matrix) {
  TORCH_CHECK(matrix.dim() == 2, "expected a matrix, got ", matrix.sizes());
  const auto dtype = matrix.scalar_type();
  TORCH_CHECK(
      dtype == at::kChar || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat ||
          dtype == at::kFloat8_e4m3fn,
      "Unsupported dtype for cuSPARSELt compressed matrix");
  const int64_t rows = matrix.size(0);
  const int64_t rows_of_tile = devices()[current_device()].capability_major == 9 ? 64 : 1;
  const int64_t coded_rows = (rows + rows_of_tile - 1) / rows_of_tile * rows_of_tile;
  const int64_t sixteenths = is_in_bytes(matrix) ? 2 : 1;
  const int64_t codes_length = coded_rows * matrix.size(1) * sixteenths / 16;
  const int64_t elements = matrix.numel() / 2 + codes_length;
  const int64_t columns = rows == 0 ? 0 : (elements + rows - 1) / rows;
  const auto result = at::empty({rows, columns}, matrix.options());
  if (matrix.is_meta()) {
    return result;
  }
  const auto whole = matrix.contiguous();
  const auto bits = is_in_bytes(matrix) ? whole.view(at::kChar) : whole;
  const auto is_number = matrix.to(at::kFloat).ne(0).contiguous();
  const int64_t numbers = numbers_of_code(dtype);
  const int64_t kept_of_code = numbers / 2;
  const int64_t codes = matrix.numel() / numbers;
  const auto places = at::empty({codes, kept_of_code}, at::kLong);
  auto place = places.accessor<int64_t, 2>();
  const auto packed = at::zeros({(codes + 1) / 2}, at::kByte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < codes; ++i) {
    const auto kept = places_to_keep(is_number.const_data_ptr<bool>() + i * numbers, numbers);
    for (int64_t j = 0; j < kept_of_code; ++j) {
      place[i][j] = kept[j] * numbers / 4;
    }
    bytes[i / 2] |= static_cast<uint8_t>((kept[0] | kept[1] << 2) << (i % 2 * 4));
  }
  const auto kept = bits.view({codes, numbers}).gather(1, places).view({-1});
  const auto flat = result.view({-1});
  flat.narrow(0, 0, kept.numel()).copy_(kept.view(dtype));
  const auto rest = flat.narrow(0, kept.numel(), packed.numel() / matrix.element_size());
  rest.view(at::kByte).copy_(packed);
  return result;
}

at::Tensor restore_compressed(const at::Tensor& compressed, int64_t columns) {
  const int64_t rows = compressed.size(0);
  const auto flat = compressed.contiguous().view({-1});
  const int64_t kept = rows * columns / 2;
  const int64_t codes_of_row = columns / numbers_of_code(compressed.scalar_type());
  const int64_t code_bytes = (flat.numel() - kept) * compressed.element_size();
  TORCH_CHECK(
      columns % 4 == 0 && rows * codes_of_row <= 2 * code_bytes, "a compressed matrix of shape ",
      compressed.sizes(), " does not have ", columns, " columns");
  const auto bytes = flat.narrow(0, kept, flat.numel() - kept).view(at::kByte);
  return restore(
      flat.narrow(0, 0, kept).view({rows, columns / 2}), [&](int64_t row, int64_t column) {
        const int64_t i = row * codes_of_row + column;
        return static_cast<Code>(bytes.const_data_ptr<uint8_t>()[i / 2] >> (i % 2 * 4) & 15);
      });
}

at::Tensor compressed_mm(
    const at::Tensor& compressed,
    const at::Tensor& other,
    const OptionalTensor& bias,
    const OptionalTensor& alpha,
    std::optional<at::ScalarType> out_dtype,
    bool transpose_result,
    int64_t /*algorithm*/,
    int64_t /*split_k*/,
    int64_t /*split_k_mode*/) {
  const auto dtype = out_dtype.value_or(other.scalar_type());
  TORCH_CHECK(
      !out_dtype.has_value() || is_in_bytes(compressed),
      "out_dtype support only available for int8/fp8 inputs");
  const auto options = other.options().dtype(dtype);
  const int64_t rows = compressed.size(0);
  const int64_t columns = other.size(1);
  if (other.is_meta()) {
    return transpose_result ? at::empty({columns, rows}, options)
                            : at::empty({rows, columns}, options);
  }
  auto result = multiply_whole(restore_compressed(compressed, other.size(0)), other);
  if (is_given(alpha)) {
    result = result * (alpha->dim() == 1 ? alpha->unsqueeze(1) : *alpha);
  }
  if (is_given(bias)) {
    result = result + bias->to(at::kFloat).unsqueeze(1);
  }
  result = round_to(result, dtype);
  return transpose_result ? result.t().contiguous() : result;
}

// CUDA measures which algorithm is fastest; here all are the same.
int64_t fastest_algorithm(
    const at::Tensor& /*compressed*/,
    const at::Tensor& /*other*/,
    const OptionalTensor& /*bias*/,
    const OptionalTensor& /*alpha*/,
    std::optional<at::ScalarType> /*out_dtype*/,
    bool /*transpose_result*/) {
  return 0;
}

void check_mad(
    const at::Tensor& kept,
    const at::Tensor& meta,
    const at::Tensor& other,
    const at::Tensor* sum,
    const c10::IValue& out_dtype,
    c10::Device device) {
  const std::string name = "sparse_semi_structured_mad_op : ";
  TORCH_CHECK(
      devices()[device.index()].capability_major == 8, name,
      "Supported only on GPUs with compute capability 8.x");
  const auto dtype = other.scalar_type();
  TORCH_CHECK(
      dtype == at::kChar || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat,
      name, "The mat2 datatype ", other.dtype(), " is not supported");
  TORCH_CHECK(
      kept.dtype() == other.dtype(), name, "Expected mat1 datatype ", other.dtype(), ", but got ",
      kept.dtype());
  const auto result = out_dtype.isNone() ? dtype : out_dtype.toScalarType();
  const bool adds = sum != nullptr && sum->numel() > 0;
  TORCH_CHECK(
      !adds || sum->scalar_type() == result, name, "Expected input datatype ", result, ", but got ",
      sum->dtype());
  const auto check_matrix = [&](const at::Tensor& tensor, const char* argument) {
    TORCH_CHECK(
        tensor.dim() == 2, name, "Expected ", argument, " argument to be 2D tensor, got ",
        tensor.dim(), " dims");
    TORCH_CHECK(
        tensor.stride(0) == 1 || tensor.stride(1) == 1, name, "Invalid strides for ", argument,
        " argument: row stride = ", tensor.stride(0), ", column stride = ", tensor.stride(1));
  };
  check_matrix(kept, "mat1");
  check_matrix(other, "mat2");
  TORCH_CHECK(
      !adds || sum->dim() == 1, name, "Expected input argument to be 1D tensor, got ",
      adds ? sum->dim() : 0, " dims");
  TORCH_CHECK(
      kept.size(1) == other.size(0) / 2, name, "Expected mat1 argument to have ", other.size(0) / 2,
      " columns, but got ", kept.size(1));
  TORCH_CHECK(
      !adds || sum->size(0) == kept.size(0), name, "Expected input argument to have ", kept.size(0),
      " elements, but got ", adds ? sum->size(0) : 0);
  const bool by_rows[] = {kept.stride(1) == 1, other.stride(1) == 1};
  const auto major = [](bool is_by_rows) { return is_by_rows ? "row-major" : "column_major"; };
  TORCH_CHECK(
      dtype != at::kChar || (by_rows[0] && !by_rows[1]),
      "spgemm_cutlass_dispatch_layouts_dispatch_layouts: Combination of ", major(by_rows[0]),
      " and ", major(by_rows[1]), " layouts for input tensors is not supported");
  const auto word = dtype == at::kChar ? at::kInt : at::kShort;
  TORCH_CHECK(
      meta.scalar_type() == word, "spgemm_cutlass : Expected meta datatype ", word, ", but got ",
      meta.dtype());
  // Operands and result are accessed in units of 16 bytes.
  const auto is_aligned = [](int64_t numbers, at::ScalarType of) {
    return numbers * static_cast<int64_t>(c10::elementSize(of)) % 16 == 0;
  };
  TORCH_CHECK(
      is_aligned(kept.size(by_rows[0] ? 1 : 0), dtype) &&
          is_aligned(other.size(by_rows[1] ? 1 : 0), dtype) && is_aligned(other.size(1), result),
      "spgemm_cutlass : CUTLASS error: Error Misaligned Operand");
}

} // namespace

// CUTLASS interleaves the rows within a group, transposes 2x2 squares of words, and stores columns
// in pairs.
int64_t place_of_word(int64_t row, int64_t column, int64_t rows, bool is_short) {
  const int64_t group = is_short ? 32 : 16;
  int64_t to_row = row / group * group + row % 8 * (group / 8) + row % group / 8;
  int64_t to_column = column;
  if (to_row % 2 == 0 && to_column % 2 == 1) {
    ++to_row;
    --to_column;
  } else if (to_row % 2 == 1 && to_column % 2 == 0) {
    --to_row;
    ++to_column;
  }
  return (to_column / 2 * rows + to_row) * 2 + to_column % 2;
}

namespace {

// _sparse_semi_structured_mm(mat1, mat1_meta, mat2, out_dtype)
void check_semi_structured_mm(Arguments arguments, c10::Device device) {
  check_mad(
      arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(), nullptr,
      arguments[3], device);
}

// _sparse_semi_structured_addmm(input, mat1, mat1_meta, mat2, alpha, beta, out_dtype)
void check_semi_structured_addmm(Arguments arguments, c10::Device device) {
  check_mad(
      arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor(),
      &arguments[0].toTensor(), arguments[6], device);
}

void check_semi_structured_linear(Arguments /*arguments*/, c10::Device device) {
  TORCH_WARN_ONCE(
      "_sparse_semi_structured_linear is deprecated and will be removed in a future PyTorch "
      "release.  Please use _sparse_semi_structured_mm/_sparse_semi_structured_addmm instead.");
  TORCH_CHECK(
      devices()[device.index()].capability_major == 8,
      "_sparse_semi_structured_linear: Supported only on GPUs with compute capability 8.x");
}

void check_cusparselt(Arguments /*arguments*/, c10::Device device) {
  TORCH_CHECK(
      devices()[device.index()].capability_major >= 8,
      "CUDA error: architecture mismatch when calling `cusparseLtInit(&handle)`");
}

// (compressed, dense, bias, alpha, …)
void check_compressed_mm(Arguments arguments, c10::Device device) {
  check_cusparselt(arguments, device);
  const auto& alpha = arguments[3];
  TORCH_CHECK(
      !alpha.isTensor() || !alpha.toTensor().defined() || alpha.toTensor().numel() == 1 ||
          devices()[device.index()].capability_major != 9,
      "CUDA error: operation not supported when calling `cusparseLtMatmulDescSetAttribute( "
      "&handle, "
      "&matmul, CUSPARSELT_MATMUL_ALPHA_VECTOR_SCALING, &tensor_alpha_mode, "
      "sizeof(tensor_alpha_mode))`");
}

void check_search(Arguments arguments, c10::Device device) {
  TORCH_WARN_ONCE(
      "torch._cslt_sparse_mm_search is deprecated and will be removed in a future PyTorch release. "
      "Please use torch._C._cusparselt.mm_search instead.");
  check_compressed_mm(arguments, device);
}

} // namespace

OperatorRecords semi_structured_records() {
  return {
      {{"_sparse_semi_structured_mm"},
       {.check_limits = check_semi_structured_mm,
        .host_kernels = {host_kernel(&semi_structured_mm)}}},
      {{"_sparse_semi_structured_addmm"},
       {.check_limits = check_semi_structured_addmm,
        .host_kernels = {host_kernel(&product_with_sum)}}},
      {{"_sparse_semi_structured_linear"},
       {.check_limits = check_semi_structured_linear,
        .host_kernels = {host_kernel(&semi_structured_linear)}}},
      {{"_cslt_compress"},
       {.check_limits = check_cusparselt, .host_kernels = {host_kernel(&compress)}}},
      {{"_cslt_sparse_mm"},
       {.check_limits = check_compressed_mm, .host_kernels = {host_kernel(&compressed_mm)}}},
      {{"_cslt_sparse_mm_search"},
       {.check_limits = check_search, .host_kernels = {host_kernel(&fastest_algorithm)}}},
  };
}

} // namespace anyrig::virtual_gpu
