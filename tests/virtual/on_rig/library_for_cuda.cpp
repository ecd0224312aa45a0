// A library of operators as one that is built for CUDA brings it: kernels for the CPU, and for CUDA
// kernels that need a real GPU.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace {

at::Tensor twice_on_host(const at::Tensor& tensor) {
  const at::Tensor source = tensor.contiguous();
  at::Tensor result = at::empty_like(source);
  const float* from = source.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < source.numel(); ++i) {
    to[i] = 2 * from[i];
  }
  return result;
}

at::Tensor start_a_kernel(const at::Tensor& /*tensor*/) {
  TORCH_CHECK(false, "CUDA error: no CUDA-capable device is detected");
}

TORCH_LIBRARY(anyrig_library_for_cuda, library) {
  library.def("twice(Tensor tensor) -> Tensor");
  library.def("only_on_gpus(Tensor tensor) -> Tensor");
}

TORCH_LIBRARY_IMPL(anyrig_library_for_cuda, CPU, library) {
  library.impl("twice", &twice_on_host);
}

TORCH_LIBRARY_IMPL(anyrig_library_for_cuda, CUDA, library) {
  library.impl("twice", &start_a_kernel);
  library.impl("only_on_gpus", &start_a_kernel);
}

} // namespace
