#include "operators/library_limits.h"

#include "device/device.h"
#include "operators/fft_plans.h"
#include "operators/semi_structured.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

bool is_power_of_two(int64_t size) {
  return size > 0 && (size & (size - 1)) == 0;
}

bool is_of_halves(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kComplexHalf;
}

// CuFFTConfig of aten/src/ATen/native/cuda/CuFFTPlanCache.h.
void check_signal(const at::Tensor& signal, at::IntArrayRef sizes) {
  for (const int64_t size : sizes) {
    TORCH_CHECK(
        signal.numel() == 0 || !is_of_halves(signal) || is_power_of_two(size),
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
        "precision, but got a signal size of", sizes);
  }
}

std::vector<int64_t> sizes_along(const at::Tensor& tensor, at::IntArrayRef dims) {
  std::vector<int64_t> sizes;
  for (const int64_t dim : dims) {
    sizes.push_back(tensor.size(dim));
  }
  return sizes;
}

void check_sizes(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  check_signal(self, sizes_along(self, arguments[1].toIntVector()));
}

// _fft_r2c(self, dim, normalization, onesided)
void check_transform_to_complex(Arguments arguments, c10::Device device) {
  check_sizes(arguments);
  note_plans_to_complex(arguments, device);
}

// _fft_c2c(self, dim, normalization, forward)
void check_transform_of_complex(Arguments arguments, c10::Device device) {
  check_sizes(arguments);
  note_plans_of_complex(arguments, device);
}

// _fft_c2r(self, dim, normalization, last_dim_size): half of the signal is in `self`.
void check_transform_to_real(Arguments arguments, c10::Device device) {
  const at::Tensor& self = arguments[0].toTensor();
  auto sizes = sizes_along(self, arguments[1].toIntVector());
  if (!sizes.empty()) {
    sizes.back() = arguments[3].toInt();
  }
  check_signal(self, sizes);
  note_plans_to_real(arguments, device);
}

// _int_mm_out_cuda of aten/src/ATen/native/cuda/Blas.cpp.
void check_product_of_bytes(Arguments arguments, c10::Device /*device*/) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& other = arguments[1].toTensor();
  if (self.dim() != 2 || other.dim() != 2) {
    return; // refused by all
  }
  TORCH_CHECK(
      self.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", self.size(0));
  TORCH_CHECK(
      self.size(1) > 0 && self.size(1) % 8 == 0,
      "self.size(1) needs to be greater than 0 and a multiple of 8, but got ", self.size(1));
  TORCH_CHECK(
      self.size(1) == other.size(0),
      "self.size(1) needs to match mat2.size(0) but got ", self.size(1), " and ", other.size(0));
  TORCH_CHECK(
      other.size(1) > 0 && other.size(1) % 8 == 0,
      "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got ", other.size(1));
}

// _scaled_allowed_device of aten/src/ATen/native/cuda/ScaledBlas.cpp.
void check_narrow_floats(Arguments /*arguments*/, c10::Device device) {
  const DeviceFacts& card = devices()[device.index()];
  TORCH_CHECK(
      card.capability_major >= 9 || (card.capability_major == 8 && card.capability_minor == 9),
      "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, "
      "or ROCm MI300+");
}

void check_bias_of_scaled_product(Arguments arguments) {
  const at::Tensor& mat1 = arguments[0].toTensor();
  if (!arguments[4].isTensor()) {
    return;
  }
  const at::Tensor& bias = arguments[4].toTensor();
  const auto dtype = bias.scalar_type();
  const auto result =
      arguments[6].isNone() ? mat1.scalar_type() : arguments[6].toScalarType();
  const int64_t columns = arguments[1].toTensor().size(1);
  TORCH_CHECK(
      bias.numel() == columns, "Bias must be size ", columns, " but got ", bias.numel());
  TORCH_CHECK(
      result != at::kFloat, "Bias is not supported when out_dtype is set to Float32");
  TORCH_CHECK(
      dtype == at::kBFloat16 || dtype == at::kHalf,
      "Bias must be BFloat16 or Half, but got ", dtype);
  TORCH_CHECK(
      result != at::kBFloat16 || dtype == at::kBFloat16, "Bias must be BFloat16 to compute ",
      result, " output, but got ", dtype);
  TORCH_CHECK(
      result != at::kHalf || dtype == at::kHalf, "Bias must be Float16 to compute ", result,
      " output, but got ", dtype);
}

bool is_row_major(const at::Tensor& matrix) {
  return matrix.is_contiguous();
}

bool is_column_major(const at::Tensor& matrix) {
  return !matrix.is_contiguous() && matrix.stride(0) == 1;
}

// _scaled_mm_out_cuda and _scaled_gemm of the same file, for (mat1, mat2, scale_a, scale_b, bias,
// scale_result, out_dtype, …).
void check_scaled_product(Arguments arguments, c10::Device device) {
  check_narrow_floats(arguments, device);
  const at::Tensor& mat1 = arguments[0].toTensor();
  const at::Tensor& mat2 = arguments[1].toTensor();
  if (mat1.dim() != 2 || mat2.dim() != 2 || mat1.size(1) != mat2.size(0) ||
      !at::isFloat8Type(mat1.scalar_type()) || !at::isFloat8Type(mat2.scalar_type())) {
    return; // refused by all
  }
  TORCH_CHECK(
      mat1.size(1) % 16 == 0,
      "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (",
      mat1.size(0), "x", mat1.size(1), ").");
  TORCH_CHECK(
      mat2.size(0) % 16 == 0 && mat2.size(1) % 16 == 0, "mat2 shape (", mat2.size(0), "x",
      mat2.size(1), ") must be divisible by 16");
  TORCH_CHECK_VALUE(
      mat1.scalar_type() != at::kFloat8_e5m2 || mat2.scalar_type() != at::kFloat8_e5m2,
      "Multiplication of two Float8_e5m2 matrices is not supported");
  check_bias_of_scaled_product(arguments);
  const bool is_empty = mat1.size(0) == 0 || mat1.size(1) == 0 || mat2.size(1) == 0;
  TORCH_CHECK(
      is_empty || (is_row_major(mat1) && is_column_major(mat2)),
      "Only multiplication of row-major and column-major matrices is supported by cuBLASLt");
}

} // namespace

CheckLimits limits_of(const std::string& name) {
  static const std::unordered_map<std::string, CheckLimits> limits = {
      {"_fft_r2c", check_transform_to_complex},
      {"_fft_c2c", check_transform_of_complex},
      {"_fft_c2r", check_transform_to_real},
      {"_int_mm", check_product_of_bytes},
      {"_scaled_mm", check_scaled_product},
      {"_scaled_mm_v2", check_narrow_floats},
      {"_sparse_semi_structured_mm", check_semi_structured_mm},
      {"_sparse_semi_structured_addmm", check_semi_structured_addmm},
      {"_cslt_compress", check_cusparselt},
      {"_cslt_sparse_mm", check_cusparselt},
      {"_cslt_sparse_mm_search", check_cusparselt},
  };
  const auto found = limits.find(name);
  return found == limits.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
