#include "operators/cuda_only.h"

namespace anyrig::virtual_gpu {

const HostKernels& cuda_only_kernels() {
  static const auto* kernels = [] {
    auto* kernels = new HostKernels();
    add_products(*kernels);
    add_normalizations(*kernels);
    add_convolutions(*kernels);
    add_dropouts(*kernels);
    add_drivers(*kernels);
    add_embedding_bags(*kernels);
    return kernels;
  }();
  return *kernels;
}

} // namespace anyrig::virtual_gpu
