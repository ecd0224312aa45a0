// The conversion of cuRAND's values to the distributions of Tensor.uniform_, normal_, random_ and
// similar operators, element by element.
//
// Source: aten/src/ATen/core/TransformationHelper.h and DistributionTemplates.h (CUDA), 2.13. T is
// the element type and C the type of the computation: float for half precision and integers.
// Logarithm, exponential and tangent are exact here; the device approximates them in float.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace anyrig::virtual_gpu {

/// From (0, 1] to [from, to): a result equal to `to` becomes `from`.
template <class T, class C>
struct ToUniform {
  ToUniform(double from, double to)
      : from(static_cast<T>(from)),
        to(static_cast<T>(to)),
        range(static_cast<C>(static_cast<T>(this->to - this->from))) {}
  T operator()(C value) const {
    const C start = static_cast<C>(from);
    const T scaled = static_cast<T>(start == 0 ? value * range : std::fma(value, range, start));
    return scaled == to ? from : scaled;
  }
  T from, to;
  C range;
};

template <class T, class C>
struct ToNormal {
  T operator()(C value) const {
    // Without a mean there is one rounding anyway, and on most hosts fma is a function call.
    return static_cast<T>(mean == 0 ? value * std : std::fma(value, std, mean));
  }
  C mean, std;
};

template <class T, class C>
struct ToLogNormal {
  T operator()(C value) const { return static_cast<T>(std::exp(std::fma(value, std, mean))); }
  C mean, std;
};

template <class T, class C>
struct ToExponential {
  T operator()(C value) const {
    constexpr C kHalfEpsilon = std::numeric_limits<C>::epsilon() / 2;  // keeps 1 from becoming 0
    const C log = value >= C{1} - kHalfEpsilon ? -kHalfEpsilon : std::log(value);
    return static_cast<T>(C{-1} / rate * log);
  }
  C rate;
};

template <class T, class C>
struct ToCauchy {
  T operator()(C value) const {
    if constexpr (std::numeric_limits<C>::digits == std::numeric_limits<float>::digits) {
      constexpr C kEpsilon = std::numeric_limits<C>::epsilon();
      value = value > 1 - kEpsilon ? 1 - kEpsilon : value < kEpsilon ? kEpsilon : value;
    }
    constexpr C kPi = static_cast<C>(3.14159265358979323846);
    return static_cast<T>(std::fma(sigma, std::tan(kPi * (value - C{0.5})), median));
  }
  C median, sigma;
};

template <class T, class C>
struct ToGeometric {
  explicit ToGeometric(double p) : log_failure(std::log1p(-static_cast<C>(p))) {}
  T operator()(C value) const { return static_cast<T>(std::ceil(std::log(value) / log_failure)); }
  C log_failure;
};

template <class T, class C>
struct ToBernoulli {
  explicit ToBernoulli(double p) : p(static_cast<C>(p)) {}
  T operator()(C value) const { return static_cast<T>(value < p); }
  C p;
};

/// random_(from, to). W is uint64_t for ranges of at least 2^28, otherwise uint32_t.
template <class T, class W>
struct ToIntegerInRange {
  T operator()(W word) const {
    const uint64_t value = word % range + static_cast<uint64_t>(base);
    return static_cast<T>(static_cast<int64_t>(value));
  }
  uint64_t range;  // to - from
  int64_t base;    // from
};

constexpr uint64_t kSmallestRangeOf64Bits = uint64_t{1} << 28;

/// random_() over the whole range of int64_t, whose size does not fit in 64 bits.
template <class T>
struct ToFullRange {
  T operator()(uint64_t word) const { return static_cast<T>(static_cast<int64_t>(word)); }
};

/// random_() without bounds: from 0 to the largest integer that T represents exactly, inclusive.
template <class T, class W>
struct ToAnyInteger {
  T operator()(W word) const {
    if constexpr (std::numeric_limits<T>::is_integer) {
      if constexpr (std::numeric_limits<T>::digits == 1) return static_cast<T>(word & 1);
      constexpr uint64_t kLargest = static_cast<uint64_t>(std::numeric_limits<T>::max());
      return static_cast<T>(static_cast<int64_t>(word % (kLargest + 1)));
    } else {
      return static_cast<T>(word % ((uint64_t{1} << std::numeric_limits<T>::digits) + 1));
    }
  }
};

}  // namespace anyrig::virtual_gpu
