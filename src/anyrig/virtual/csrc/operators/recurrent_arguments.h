// The arguments of nn.LSTM, nn.GRU and nn.RNN.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <vector>

namespace anyrig::virtual_gpu {

// The arguments of one call. Those of packed sequences begin with (data, batch sizes), the others
// with the input alone; then follow the same: states, weights, …
class LayerArguments {
 public:
  LayerArguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : name_(op.schema().name()),
        values_(torch::jit::last(stack, op.schema().arguments().size())),
        is_packed_(op.schema().overload_name() == "data") {}

  const at::Tensor& input() const { return values_[0].toTensor(); }
  std::vector<at::Tensor> states() const {
    return value(1).isTensor() ? std::vector<at::Tensor>{value(1).toTensor()}
                               : value(1).toTensorVector();
  }
  std::vector<at::Tensor> weights() const { return value(2).toTensorVector(); }
  // Returns input, states and weights.
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all{input()};
    for (const auto& part : {states(), weights()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  // Returns the arguments with their tensors replaced by `tensors`.
  torch::jit::Stack with_tensors(const std::vector<at::Tensor>& tensors) const {
    torch::jit::Stack stack(values_.begin(), values_.end());
    const size_t shift = is_packed_ ? 1 : 0, count = states().size();
    const auto first_weight = tensors.begin() + 1 + static_cast<int64_t>(count);
    stack[0] = tensors[0];
    if (value(1).isTensor()) {
      stack[shift + 1] = tensors[1];
    } else {
      stack[shift + 1] =
          c10::List<at::Tensor>(std::vector<at::Tensor>(tensors.begin() + 1, first_weight));
    }
    stack[shift + 2] = c10::List<at::Tensor>(std::vector<at::Tensor>(first_weight, tensors.end()));
    return stack;
  }
  bool is_batch_first() const { return !is_packed_ && value(8).toBool(); }
  double layers() const { return static_cast<double>(value(4).toInt()); }
  bool drops_out() const { return value(5).toDouble() > 0 && trains(); }
  bool trains() const { return value(6).toBool(); }
  bool is_bidirectional() const { return value(7).toBool(); }

  double steps() const {
    const int64_t dimension = is_batch_first() ? 1 : 0;
    return static_cast<double>(
        is_packed_ ? values_[1].toTensor().numel() : input().size(dimension));
  }

  double gates() const {
    const std::string_view name = name_;
    return name == "aten::lstm" ? 4 : name == "aten::gru" ? 3 : 1;
  }

  bool has_expected_dimensions() const {
    const auto tensors = weights();
    return input().dim() == (is_packed_ ? 2 : 3) && tensors.size() >= 2 && tensors[0].dim() == 2 &&
        tensors[1].dim() == 2;
  }

 private:
  // Returns argument `i` of the layers without packed sequences.
  const c10::IValue& value(size_t i) const { return values_[is_packed_ ? i + 1 : i]; }

  const std::string& name_;
  c10::ArrayRef<c10::IValue> values_;
  bool is_packed_;
};

} // namespace anyrig::virtual_gpu
