#include "dispatch/device_assert.h"

#include "device/cuda_error.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <sstream>

namespace anyrig::virtual_gpu {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Matches the messages of CPU kernels below aten/src/ATen/native whose CUDA counterparts have a
// CUDA_KERNEL_ASSERT. Errors about dimensions, which contain "out of range" too, come from other
// directories.
bool is_about_values(const std::string& text) {
  if (has(text, "is out of bounds for dimension with size 0")) {
    return false; // checked before any value is read
  }
  static constexpr const char* kTexts[] = {
      "is out of bounds",
      "index out of bounds",
      "index out of range",
      "out of range: tried to access index",
      "which is not in the valid range", // embedding_bag
      "target out of range", // multi_margin_loss, multilabel_margin_loss
      "should be between 0 and 1", // binary_cross_entropy
      "repeats can not be negative",
      "Found an invalid max index", // max_unpool
      "Number of elements of source < number of ones in mask",
      "invalid multinomial distribution",
  };
  return std::any_of(
      std::begin(kTexts), std::end(kTexts), [&](const char* part) { return has(text, part); });
}

// The kernel of _assert_async only asserts one value; multinomial uses it to check probabilities.
bool is_assert(const std::string& name, const std::string& text) {
  return name == "aten::_assert_async" && !has(text, "Boolean value of Tensor with");
}

} // namespace

void raise_if_device_assert(const c10::Error& error, const std::string& name, c10::Device device) {
  const std::string text = error.what_without_backtrace();
  if (is_assert(name, text) || is_about_values(text)) {
    raise_device_assert(text.substr(0, text.find('\n')), name, device);
  }
}

void raise_device_assert(const std::string& what, const std::string& name, c10::Device device) {
  std::ostringstream line;
  line << "anyrig: device-side assert on " << device << " in " << name << ": " << what << '\n';
  std::cerr << line.str() << std::flush;
  raise_cuda_error(CudaError::Assert);
}

} // namespace anyrig::virtual_gpu
