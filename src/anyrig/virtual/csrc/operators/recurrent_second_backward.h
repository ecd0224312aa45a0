// The gradients of recurrent layers have no gradients themselves, as on a GPU.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>

namespace anyrig::virtual_gpu {

inline constexpr const char* kNoSecondBackward =
    "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not "
    "supported "
    "for CuDNN RNNs due to limitations in the CuDNN API. To run double backwards, please disable "
    "the "
    "CuDNN backend temporarily while running the forward pass of your RNN. For example: \n"
    "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)";

// Passes the gradients on, which depend on `origins`.
struct SecondBackward : torch::autograd::Function<SecondBackward> {
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list gradients,
      at::TensorList /*origins*/) {
    return gradients;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list /*gradients*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, kNoSecondBackward);
  }
};

// Returns the gradients, through which a backward pass raises CUDA's error. `origins`: everything
// that they were computed from, which is the operands and the gradients of the results.
inline torch::autograd::variable_list without_second_backward(
    torch::autograd::variable_list gradients,
    at::TensorList origins) {
  torch::autograd::variable_list defined;
  std::copy_if(
      gradients.begin(), gradients.end(), std::back_inserter(defined),
      [](const auto& tensor) { return tensor.defined(); });
  auto wrapped = SecondBackward::apply(defined, origins);
  auto next = wrapped.begin();
  for (auto& gradient : gradients) {
    if (gradient.defined()) {
      gradient = *next++;
    }
  }
  return gradients;
}

} // namespace anyrig::virtual_gpu
