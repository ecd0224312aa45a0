#include "dispatch/meta_errors.h"

#include <c10/util/Exception.h>

#include <string>

namespace anyrig::virtual_gpu {

void raise_as_kernel(const pybind11::error_already_set& error) {
  const pybind11::gil_scoped_acquire gil;
  if (error.matches(PyExc_AssertionError)) {
    TORCH_CHECK(false, std::string(pybind11::str(error.value())));
  }
}

} // namespace anyrig::virtual_gpu
