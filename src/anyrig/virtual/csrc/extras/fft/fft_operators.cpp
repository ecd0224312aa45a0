// The limits of cuFFT.

#include "extras/fft/fft_plans.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr DtypeSet kHalfTransforms = {at::kHalf, at::kComplexHalf};

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
        "precision, but got a signal size of",
        sizes);
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

} // namespace

OperatorRecords fft_records() {
  return {
      {{"_fft_r2c"}, {.check_limits = check_transform_to_complex, .widened = kHalfTransforms}},
      {{"_fft_c2c"}, {.check_limits = check_transform_of_complex, .widened = kHalfTransforms}},
      {{"_fft_c2r"}, {.check_limits = check_transform_to_real, .widened = kHalfTransforms}},
  };
}

} // namespace anyrig::virtual_gpu
