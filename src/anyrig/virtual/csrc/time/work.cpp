#include "time/work.h"

namespace anyrig::virtual_gpu {

double flops_of(
    Work work,
    c10::ArrayRef<const at::Tensor*> operands,
    double convolved_numbers) {
  const auto at = [operands](size_t i) -> const at::Tensor& { return *operands[i]; };
  const size_t count = operands.size();
  switch (work) {
    case Work::Product:
      return count < 2 ? 0 : 2.0 * static_cast<double>(at(0).numel() * at(1).size(-1));
    case Work::ProductAndSum:
      return count < 3 ? 0 : 2.0 * static_cast<double>(at(1).numel() * at(2).size(-1));
    case Work::Convolution:
      if (count < 2 || at(1).size(0) == 0) {
        return 0;
      }
      return 2.0 * convolved_numbers * static_cast<double>(at(1).numel() / at(1).size(0));
    case Work::ConvolutionBackward:
      // With respect to the input and to the weight, each as dear as the forward.
      if (count < 3 || at(2).size(0) == 0) {
        return 0;
      }
      return 4.0 * static_cast<double>(at(0).numel() * (at(2).numel() / at(2).size(0)));
    case Work::Elementwise:
      return 0;
  }
  return 0;
}

} // namespace anyrig::virtual_gpu
