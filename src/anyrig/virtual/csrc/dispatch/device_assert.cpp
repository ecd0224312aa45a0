#include "dispatch/device_assert.h"

#include "device/cuda_error.h"

#include <iostream>
#include <sstream>

namespace anyrig::virtual_gpu {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// From the kernels below aten/src/ATen/native that look at the values of an index.
bool is_of_values(const std::string& text) {
  if (has(text, "is out of bounds for dimension with size 0")) {
    return false; // seen without a look at the values
  }
  return has(text, "is out of bounds") || has(text, "index out of bounds") ||
      has(text, "index out of range") || has(text, "out of range: tried to access index");
}

} // namespace

void raise_if_device_assert(const c10::Error& error, const std::string& name, c10::Device device) {
  const std::string text = error.what_without_backtrace();
  if (!is_of_values(text)) {
    return;
  }
  std::ostringstream line;
  line << "anyrig: device-side assert on " << device << " in " << name << ": "
       << text.substr(0, text.find('\n')) << '\n';
  std::cerr << line.str() << std::flush;
  raise_cuda_error(CudaError::Assert);
}

} // namespace anyrig::virtual_gpu
