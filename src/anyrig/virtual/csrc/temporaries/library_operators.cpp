// The temporaries of cuFFT and cuSOLVER: SpectralOps.cpp and linalg/BatchLinearAlgebraLib.cpp in
// aten/src/ATen/native/cuda. Only the library knows how much it asks for. Assumed:
//
//   cuFFT      the transformed data once, and eight times if a size has a prime factor above 7: the
//              bounds that cuFFT's documentation gives for its plans
//   cuSOLVER   for eigenvalues, the workspace of LAPACK's syevd, 1 + 6n + 2n² numbers; for singular
//              values, a matrix. Not counted: factorizations, which need a few columns
#include "temporaries/temporaries.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

int64_t bytes_to_transform(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// has_large_prime_factor of SpectralOps.cpp
bool has_large_prime_factor(int64_t size) {
  for (const int64_t prime : {2, 3, 5, 7}) {
    while (size > 0 && size % prime == 0) {
      size /= prime;
    }
  }
  return size > 1;
}

constexpr int64_t kMostCopies = 8;

int64_t copies_needed(const at::Tensor& self, at::IntArrayRef dims) {
  const bool has_large = std::any_of(dims.begin(), dims.end(), [&](int64_t dim) {
    return has_large_prime_factor(self.size(dim));
  });
  return has_large ? kMostCopies : 1;
}

// _fft_r2c(self, dim, normalization, onesided): computes half of the spectrum.
Temporaries of_transform_to_complex(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const auto dims = arguments[1].toDimVector();
  Temporaries steps;
  if (self.numel() > 0 && !dims.empty()) {
    const int64_t last = self.size(dims.back());
    const int64_t spectrum = 2 * bytes_to_transform(self) / last * (last / 2 + 1);
    steps.free(steps.allocate(spectrum * copies_needed(self, dims)));
  }
  return steps;
}

// _fft_c2c(self, dim, normalization, forward)
Temporaries of_transform_of_complex(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const auto dims = arguments[1].toDimVector();
  Temporaries steps;
  if (self.numel() > 0 && !dims.empty()) {
    steps.free(steps.allocate(bytes_to_transform(self) * copies_needed(self, dims)));
  }
  return steps;
}

// _fft_c2r(self, dim, normalization, last_dim_size): cuFFT overwrites its input, so PyTorch copies it.
Temporaries of_transform_to_real(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  const auto dims = arguments[1].toDimVector();
  Temporaries steps;
  if (self.numel() > 0 && !dims.empty()) {
    const bool has_large = has_large_prime_factor(arguments[3].toInt());
    steps.allocate(bytes_to_transform(self));
    const int64_t copies =
        has_large ? kMostCopies : copies_needed(self, {dims.data(), dims.size() - 1});
    steps.free(steps.allocate(bytes_to_transform(self) * copies));
  }
  return steps;
}

// _linalg_eigh(A, UPLO, compute_v)
Temporaries of_eigenvalues(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  Temporaries steps;
  if (self.dim() >= 2 && self.numel() > 0) {
    const int64_t size = self.size(-1);
    steps.free(steps.allocate(
        (1 + 6 * size + 2 * size * size) * static_cast<int64_t>(self.element_size())));
  }
  return steps;
}

// _linalg_svd(A, full_matrices, compute_uv): PyTorch copies the matrices, which cuSOLVER overwrites.
Temporaries of_singular_values(const c10::FunctionSchema& /*schema*/, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  Temporaries steps;
  if (self.dim() >= 2 && self.numel() > 0) {
    steps.allocate(bytes_to_transform(self));
    steps.free(
        steps.allocate(self.size(-1) * self.size(-2) * static_cast<int64_t>(self.element_size())));
  }
  return steps;
}

} // namespace

TemporariesOf library_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"_fft_r2c", &of_transform_to_complex}, {"_fft_c2c", &of_transform_of_complex},
      {"_fft_c2r", &of_transform_to_real},    {"_linalg_eigh", &of_eigenvalues},
      {"_linalg_svd", &of_singular_values},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
