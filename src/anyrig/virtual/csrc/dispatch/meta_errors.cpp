#include "dispatch/meta_errors.h"

#include <c10/util/Exception.h>

#include <pybind11/pybind11.h>

#include <string>

namespace anyrig::virtual_gpu {

void raise_if_assertion(const std::exception& error) {
  const auto* of_python = dynamic_cast<const pybind11::error_already_set*>(&error);
  if (of_python == nullptr) {
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  if (of_python->matches(PyExc_AssertionError)) {
    TORCH_CHECK(false, std::string(pybind11::str(of_python->value())));
  }
}

// Messages of torch/_library/fake_impl.py and custom_ops.py.
bool says_sizes_are_unknown(const std::exception& error) {
  const auto* of_python = dynamic_cast<const pybind11::error_already_set*>(&error);
  if (of_python == nullptr) {
    return false;
  }
  const pybind11::gil_scoped_acquire gil;
  const std::string text = pybind11::str(of_python->value());
  return text.find("data-dependent shape") != std::string::npos ||
      text.find("no fake impl") != std::string::npos;
}

} // namespace anyrig::virtual_gpu
