#include "extras/symmetric/bindings.h"

#ifdef USE_C10D_GLOO

#include "device/hooks.h"
#include "extras/symmetric/symmetric_memory.h"

#include <torch/csrc/utils/pybind.h>

namespace anyrig::virtual_gpu {

void bind_symmetric_memory(pybind11::module_& module) {
  module.def("install_symmetric_memory", [] {
    set_device_of_address(device_of_piece);
    install_symmetric_memory();
  });
  module.def("keep_symmetric_memory_of", &keep_symmetric_memory_of);
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void bind_symmetric_memory(pybind11::module_& /*module*/) {}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
