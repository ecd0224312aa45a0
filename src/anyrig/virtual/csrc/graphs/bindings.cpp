#include "graphs/bindings.h"

#include "device/device.h"
#include "graphs/cuda_graph.h"
#include "time/capture.h"
#include "time/streams.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

namespace anyrig::virtual_gpu {

void bind_graphs(pybind11::module_& module) {
  py::class_<CudaGraph>(module, "CudaGraph")
      .def(py::init<bool>(), py::arg("keep_graph") = false)
      .def(
          "capture_begin", torch::wrap_pybind_function_no_gil(&CudaGraph::capture_begin),
          py::arg("pool") = py::none(), py::arg("capture_error_mode") = "global")
      .def("capture_end", torch::wrap_pybind_function_no_gil(&CudaGraph::capture_end))
      .def("capture_end_pre", torch::wrap_pybind_function_no_gil(&CudaGraph::capture_end_pre))
      .def("capture_end_post", torch::wrap_pybind_function_no_gil(&CudaGraph::capture_end_post))
      .def("instantiate", torch::wrap_pybind_function_no_gil(&CudaGraph::instantiate))
      .def("replay", torch::wrap_pybind_function_no_gil(&CudaGraph::replay))
      .def("reset", torch::wrap_pybind_function_no_gil(&CudaGraph::reset))
      .def("pool", &CudaGraph::pool)
      .def("pools", &CudaGraph::pools)
      .def("_retain_pool", &CudaGraph::retain_pool)
      .def("register_generator_state", &CudaGraph::register_generator)
      .def_property_readonly("_has_graph_exec", &CudaGraph::is_instantiated)
      .def("begin_capture_to_if_node", &CudaGraph::begin_capture_to_if_node)
      .def("end_capture_to_conditional_node", &CudaGraph::end_capture_to_conditional_node)
      .def("enable_debug_mode", &CudaGraph::enable_debug_mode)
      .def("debug_dump", torch::wrap_pybind_function(&CudaGraph::debug_dump))
      .def("raw_cuda_graph", &CudaGraph::raw_graph)
      .def("raw_cuda_graph_exec", &CudaGraph::raw_executable)
      .def_static(
          "get_currently_capturing_graph", &CudaGraph::currently_capturing,
          py::return_value_policy::reference);
  module.def("is_capturing", [] {
    return capture_of(current_stream(static_cast<c10::DeviceIndex>(current_device()))) !=
        kNoCapture;
  });
}

} // namespace anyrig::virtual_gpu
