// Sets of dtypes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>

namespace anyrig::virtual_gpu {

class DtypeSet {
 public:
  constexpr DtypeSet() = default;
  constexpr DtypeSet(std::initializer_list<c10::ScalarType> dtypes) {
    for (const auto dtype : dtypes) {
      bits_ |= bit_of(dtype);
    }
  }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(c10::ScalarType dtype) const { return (bits_ & bit_of(dtype)) != 0; }

  friend constexpr DtypeSet operator|(DtypeSet a, DtypeSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  static_assert(static_cast<int>(c10::ScalarType::NumOptions) <= 64);

  static constexpr uint64_t bit_of(c10::ScalarType dtype) {
    return uint64_t{1} << static_cast<int>(dtype);
  }

  uint64_t bits_ = 0;
};

inline constexpr DtypeSet kBool = {c10::ScalarType::Bool};
inline constexpr DtypeSet kWholeNumbers = {
    c10::ScalarType::Byte, c10::ScalarType::Char, c10::ScalarType::Short, c10::ScalarType::Int,
    c10::ScalarType::Long};
inline constexpr DtypeSet kIntegral = kBool | kWholeNumbers;
inline constexpr DtypeSet kHalves = {c10::ScalarType::Half, c10::ScalarType::BFloat16};
inline constexpr DtypeSet kFloats =
    kHalves | DtypeSet{c10::ScalarType::Float, c10::ScalarType::Double};
inline constexpr DtypeSet kComplexHalf = {c10::ScalarType::ComplexHalf};
inline constexpr DtypeSet kComplexes = {
    c10::ScalarType::ComplexHalf, c10::ScalarType::ComplexFloat, c10::ScalarType::ComplexDouble};
inline constexpr DtypeSet kInexact = kFloats | kComplexes;
inline constexpr DtypeSet kReal = kIntegral | kFloats;
inline constexpr DtypeSet kAllButBool = kWholeNumbers | kInexact;
inline constexpr DtypeSet kBoolAndComplexes = kBool | kComplexes;
inline constexpr DtypeSet kAllButFloats = kIntegral | kComplexes;
inline constexpr DtypeSet kIntegralAndHalves = kIntegral | kHalves;

} // namespace anyrig::virtual_gpu
