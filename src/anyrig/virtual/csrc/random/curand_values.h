// The conversion of Philox words to uniform and normal numbers, as cuRAND does it.
//
// Source: curand_uniform.h and curand_normal.h of CUDA 12. The device contracts a product and a sum
// into one rounding, hence std::fma. Uniform numbers and integers match the device's bit for bit.
// Normal floats differ slightly: the device computes sine and cosine in a hardware unit (__sincosf,
// absolute error up to 2^-21) that hosts do not have.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "random/philox.h"

namespace anyrig::virtual_gpu {

constexpr float kTwoToMinus32 = 0x1p-32f;
constexpr double kTwoToMinus53 = 0x1p-53;
constexpr float kTwoPi = 6.2831855f;
constexpr double kPi = 3.141592653589793;

/// Converts one word to a number in (0, 1].
inline float uniform_value(uint32_t word) {
  return static_cast<float>(word) * kTwoToMinus32 + kTwoToMinus32 / 2;
}

/// Converts 53 bits of two words to a number in (0, 1].
inline double uniform_value(uint32_t low, uint32_t high) {
  const uint64_t bits = uint64_t{low} ^ (uint64_t{high} << 21);
  return static_cast<double>(bits) * kTwoToMinus53 + kTwoToMinus53 / 2;
}

/// Converts two words to two normal numbers (Box and Muller).
inline std::array<float, 2> normal_values(uint32_t radius_word, uint32_t angle_word) {
  const float step = kTwoToMinus32 * kTwoPi;
  const float angle = std::fma(static_cast<float>(angle_word), step, step / 2);
  const float radius = std::sqrt(-2 * std::log(uniform_value(radius_word)));
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

/// Converts four words to two normal numbers.
inline std::array<double, 2> normal_values(PhiloxWords words) {
  const uint64_t angle_bits = uint64_t{words[2]} ^ (uint64_t{words[3]} << 21);
  const double angle = (static_cast<double>(angle_bits) * 2 + 1) * kTwoToMinus53 * kPi;
  const double radius = std::sqrt(-2 * std::log(uniform_value(words[0], words[1])));
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

// The draws of ATen's kernels, which convert four words to four or two values. Each draw has its
// own type, so that the loop over a launch is compiled for it.

inline constexpr auto draw_uniform4 = [](PhiloxWords words) {
  return std::array<float, 4>{
      uniform_value(words[0]), uniform_value(words[1]), uniform_value(words[2]),
      uniform_value(words[3])};
};

inline constexpr auto draw_uniform2 = [](PhiloxWords words) {
  return std::array<double, 2>{
      uniform_value(words[0], words[1]), uniform_value(words[2], words[3])};
};

inline constexpr auto draw_normal4 = [](PhiloxWords words) {
  const auto [a, b] = normal_values(words[0], words[1]);
  const auto [c, d] = normal_values(words[2], words[3]);
  return std::array<float, 4>{a, b, c, d};
};

inline constexpr auto draw_normal2 = [](PhiloxWords words) { return normal_values(words); };

inline constexpr auto draw_words4 = [](PhiloxWords words) { return words; };

inline constexpr auto draw_words2 = [](PhiloxWords words) {
  return std::array<uint64_t, 2>{
      (uint64_t{words[0]} << 32) | words[1], (uint64_t{words[2]} << 32) | words[3]};
};

} // namespace anyrig::virtual_gpu
