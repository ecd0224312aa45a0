// A C interface to the random headers for ctypes, with one function per distribution and element
// type. Each fills `out` as a launch on the GPU does and returns the increment of the offset.
#include "random/launch_geometry.h"
#include "random/random_launches.h"
#include "random/random_transforms.h"

using namespace anyrig::virtual_gpu;

namespace {

template <class T, class Draw, class Transform>
uint64_t fill(
    T* out,
    uint64_t elements,
    PhiloxPosition start,
    Multiprocessors gpu,
    Draw draw,
    Transform transform) {
  const Launch launch = plan_launch(elements, draw(PhiloxWords{}).size(), gpu);
  run_launch(
      launch, start, draw, [&](uint64_t element, auto value) { out[element] = transform(value); });
  return launch.increment;
}

}  // namespace

#define ARGUMENTS(T)                                                                   \
  T *out, uint64_t elements, uint64_t seed, uint64_t offset, uint32_t multiprocessors, \
      uint32_t max_threads
#define PLACE                      \
  out, elements, {seed, offset}, { \
    multiprocessors, max_threads   \
  }

extern "C" {

void philox(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
  const PhiloxWords words =
      philox4x32_10({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
  std::copy(words.begin(), words.end(), out);
}
void thread_words(uint64_t seed, uint64_t subsequence, uint64_t offset, uint32_t* out) {
  PhiloxThread one({seed, offset}, subsequence), four({seed, offset}, subsequence);
  for (int i = 0; i < 8; ++i) out[i] = one.next();
  const PhiloxWords a = four.next4(), b = four.next4();
  std::copy(a.begin(), a.end(), out + 8);
  std::copy(b.begin(), b.end(), out + 12);
}
uint64_t uniform_float(ARGUMENTS(float), double from, double to) {
  return fill(PLACE, draw_uniform4, ToUniform<float, float>(from, to));
}
uint64_t uniform_double(ARGUMENTS(double), double from, double to) {
  return fill(PLACE, draw_uniform2, ToUniform<double, double>(from, to));
}
uint64_t normal_float(ARGUMENTS(float), double mean, double std) {
  return fill(
      PLACE, draw_normal4,
      ToNormal<float, float>{static_cast<float>(mean), static_cast<float>(std)});
}
uint64_t normal_double(ARGUMENTS(double), double mean, double std) {
  return fill(PLACE, draw_normal2, ToNormal<double, double>{mean, std});
}
uint64_t exponential_float(ARGUMENTS(float), double rate) {
  return fill(PLACE, draw_uniform4, ToExponential<float, float>{static_cast<float>(rate)});
}
float exponential_of(float value) {
  return ToExponential<float, float>{1.0F}(value);
}
float uniform_of(float value, double from, double to) {
  return ToUniform<float, float>(from, to)(value);
}
uint64_t cauchy_float(ARGUMENTS(float), double median, double sigma) {
  return fill(
      PLACE, draw_uniform4,
      ToCauchy<float, float>{static_cast<float>(median), static_cast<float>(sigma)});
}
uint64_t log_normal_float(ARGUMENTS(float), double mean, double std) {
  return fill(
      PLACE, draw_normal4,
      ToLogNormal<float, float>{static_cast<float>(mean), static_cast<float>(std)});
}
uint64_t geometric_float(ARGUMENTS(float), double p) {
  return fill(PLACE, draw_uniform4, ToGeometric<float, float>(p));
}
uint64_t bernoulli_float(ARGUMENTS(float), double p) {
  return fill(PLACE, draw_uniform4, ToBernoulli<float, float>(p));
}
uint64_t integer_in_range(ARGUMENTS(int64_t), uint64_t range, int64_t base) {
  if (range >= kSmallestRangeOf64Bits)
    return fill(PLACE, draw_words2, ToIntegerInRange<int64_t, uint64_t>{range, base});
  return fill(PLACE, draw_words4, ToIntegerInRange<int64_t, uint32_t>{range, base});
}
uint64_t any_integer_64(ARGUMENTS(int64_t)) {
  return fill(PLACE, draw_words2, ToAnyInteger<int64_t, uint64_t>{});
}
uint64_t any_integer_8(ARGUMENTS(uint8_t)) {
  return fill(PLACE, draw_words4, ToAnyInteger<uint8_t, uint32_t>{});
}
uint64_t any_integer_float(ARGUMENTS(float)) {
  return fill(PLACE, draw_words4, ToAnyInteger<float, uint32_t>{});
}
uint64_t dropout(ARGUMENTS(uint8_t), int64_t vector_size, double keep_probability) {
  const Launch launch = plan_dropout(elements, {multiprocessors, max_threads});
  run_dropout(
      launch, {seed, offset}, vector_size, static_cast<float>(keep_probability),
      [&](uint64_t element, bool kept) { out[element] = kept; });
  return launch.increment;
}
int64_t vector_size(int64_t elements, size_t element_bytes, uint64_t address, bool dense) {
  return dropout_vector_size(elements, element_bytes, address, dense);
}
void bernoulli_probabilities(float* out, uint64_t elements, uint64_t seed, uint64_t offset) {
  run_bernoulli(elements, {seed, offset}, [&](uint64_t element, float v) { out[element] = v; });
}
int key_bits(int64_t n) {
  return randperm_key_bits(n);
}
void permutation(
    const int32_t* keys,
    int64_t n,
    int bits,
    uint64_t seed,
    uint64_t offset,
    int64_t* out) {
  const auto order = permutation_of(std::vector<int32_t>(keys, keys + n), bits, {seed, offset});
  std::copy(order.begin(), order.end(), out);
}
}
