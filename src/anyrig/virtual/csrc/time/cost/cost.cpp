#include "time/cost/cost.h"

namespace anyrig::virtual_gpu {
namespace {

double seconds_of_family(const GpuFacts& gpu, const Work& work) {
  switch (work.family) {
    case Family::Memory:
      return memory_seconds(gpu, work);
    case Family::Product:
      return product_seconds(gpu, work);
    case Family::Convolution:
      return convolution_seconds(gpu, work);
    case Family::Attention:
      return attention_seconds(gpu, work);
  }
  return 0;
}

} // namespace

double gpu_seconds(const GpuFacts& gpu, const Work& work) {
  return work.kernels * gpu.coefficients.kernel_floor_seconds + seconds_of_family(gpu, work);
}

} // namespace anyrig::virtual_gpu
