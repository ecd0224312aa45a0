// The gradients of recurrent layers have none of their own, as on a GPU.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>

namespace anyrig::virtual_gpu {

inline constexpr const char* kNoSecondBackward =
    "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported "
    "for CuDNN RNNs due to limitations in the CuDNN API. To run double backwards, please disable the "
    "CuDNN backend temporarily while running the forward pass of your RNN. For example: \n"
    "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)";

// Passes the gradients on, which depend on those of the results.
struct SecondBackward : torch::autograd::Function<SecondBackward> {
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list gradients,
      at::TensorList /*of_results*/) {
    return gradients;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list /*gradients*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, kNoSecondBackward);
  }
};

// Returns the gradients, of which a backward pass raises CUDA's error.
inline torch::autograd::variable_list without_second_backward(
    torch::autograd::variable_list gradients, const torch::autograd::variable_list& of_results) {
  const auto defined = [](const torch::autograd::variable_list& all) {
    torch::autograd::variable_list found;
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), [](const auto& tensor) {
      return tensor.defined();
    });
    return found;
  };
  const auto results = defined(of_results);
  auto wrapped = SecondBackward::apply(defined(gradients), at::TensorList(results));
  auto next = wrapped.begin();
  for (auto& gradient : gradients) {
    if (gradient.defined()) {
      gradient = *next++;
    }
  }
  return gradients;
}

} // namespace anyrig::virtual_gpu
