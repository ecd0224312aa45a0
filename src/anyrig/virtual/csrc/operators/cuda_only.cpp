#include "operators/cuda_only.h"

#include "extras/scaled_products/scaled_products.h"
#include "extras/sparsity/semi_structured.h"

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
    add_grouped_products(*kernels);
    add_cudnn(*kernels);
    add_narrow_products(*kernels);
    add_scaled_products(*kernels);
    add_scaled_groups(*kernels);
    add_lists(*kernels);
    add_semi_structured(*kernels);
    add_pruning(*kernels);
    return kernels;
  }();
  return *kernels;
}

const HostKernels& cuda_only_kernels_of(c10::DispatchKey key) {
  static const auto* compressed = [] {
    auto* kernels = new HostKernels();
    add_compressed_products(*kernels);
    return kernels;
  }();
  static const auto* none = new HostKernels();
  return key == c10::DispatchKey::SparseCsrCUDA ? *compressed : *none;
}

} // namespace anyrig::virtual_gpu
