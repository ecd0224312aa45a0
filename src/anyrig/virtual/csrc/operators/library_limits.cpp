#include "operators/library_limits.h"

#include "extras/fft/fft_plans.h"
#include "extras/scaled_products/scaled_products.h"
#include "extras/sparsity/semi_structured.h"

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

// _fft_c2r(self, dim, normalization, last_dim_size): `self` holds half of the spectrum.
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
        return; // every backend refuses it
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

} // namespace

CheckLimits limits_of(const std::string& name) {
  static const std::unordered_map<std::string, CheckLimits> limits = {
      {"_fft_r2c", check_transform_to_complex},
      {"_fft_c2c", check_transform_of_complex},
      {"_fft_c2r", check_transform_to_real},
      {"_int_mm", check_product_of_bytes},
      {"_scaled_mm", check_scaled_mm},
      {"_scaled_mm_v2", check_scaled_mm_v2},
      {"_scaled_grouped_mm", check_scaled_grouped_mm},
      {"_scaled_grouped_mm_v2", check_scaled_grouped_mm_v2},
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
