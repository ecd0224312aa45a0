// The temporaries of running sums: ScanUtils.cuh (scan_dim), CumsumKernel.cu, CumprodKernel.cu and
// LogcumsumexpKernel.cu in aten/src/ATen/native/cuda. CUB scans a tensor that is one row; otherwise
// each block scans a row of its own.
#include "temporaries/cub.h"
#include "temporaries/temporaries.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <unordered_map>

namespace anyrig::virtual_gpu {
namespace {

// inclusive_scan of ATen/cuda/cub.cuh divides longer rows.
constexpr int64_t kMostScanned = int64_t{1} << 30;

bool is_scanned_as_number(at::ScalarType dtype) {
  return dtype != at::kHalf && dtype != at::kBFloat16 && !at::isComplexType(dtype);
}

// (self, dim, *, dtype), or without a dtype
template <bool kWidensIntegers>
Temporaries of_scan(const c10::FunctionSchema& schema, Arguments arguments) {
  const auto& self = arguments[0].toTensor();
  Temporaries steps;
  if (self.dim() == 0 || self.numel() == 0) {
    return steps;
  }
  at::ScalarType dtype = self.scalar_type();
  const auto place = schema.argumentIndexWithName("dtype");
  if (place.has_value() && !arguments[*place].isNone()) {
    dtype = arguments[*place].toScalarType();
  } else if (kWidensIntegers && at::isIntegralType(dtype, /*includeBool=*/true)) {
    dtype = at::kLong;
  }
  const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  if (dtype != self.scalar_type()) {
    steps.allocate(self.numel() * bytes);
  }
  if (!self.is_contiguous()) {
    steps.allocate(self.numel() * bytes);
  }
  const int64_t dim = c10::maybe_wrap_dim(arguments[1].toInt(), self.dim());
  if (self.numel() != self.size(dim)) {
    return steps;
  }
  const CubGpu gpu = CubGpu::of(self.device().index());
  for (int64_t left = self.numel(); left > 0; left -= kMostScanned) {
    const bool continues = left != self.numel();
    const int first = steps.allocate(continues ? bytes : 0);
    steps.free(steps.allocate(scan_bytes(
        gpu, std::min(left, kMostScanned), bytes, is_scanned_as_number(dtype), /*is_sum=*/false)));
    steps.free(first);
  }
  return steps;
}

} // namespace

TemporariesOf scan_temporaries_of(const std::string& name) {
  static const std::unordered_map<std::string, TemporariesOf> functions = {
      {"cumsum", &of_scan<true>},
      {"cumprod", &of_scan<true>},
      {"_logcumsumexp", &of_scan<false>},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

} // namespace anyrig::virtual_gpu
