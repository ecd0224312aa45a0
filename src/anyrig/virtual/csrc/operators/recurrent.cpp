// The fused cells of LSTM and GRU, which PyTorch asks for on accelerators only. Formulas: the
// docstrings of torch.nn.LSTM and torch.nn.GRU; what is saved for the backward:
// aten/src/ATen/native/cuda/RNN.cu.

#include "operators/kernels.h"
#include "operators/optional_tensor.h"
#include "time/clock.h"
#include "time/records/operator_work.h"
#include "time/streams.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

namespace anyrig::virtual_gpu {
namespace {

// Charges each function below as one kernel that reads and writes `tensors`, as on CUDA.
class FusedKernel {
 public:
  explicit FusedKernel(const at::Tensor& on) : device_(on.device().index()) {}

  void charge(std::initializer_list<at::Tensor> tensors) {
    parts_.reset();
    double bytes = 0;
    for (const auto& tensor : tensors) {
      bytes += tensor.defined() ? touched_bytes(tensor) : 0;
    }
    Clock::get().run(current_stream(device_), memory_work(bytes, 0));
  }

 private:
  c10::DeviceIndex device_;
  std::optional<Clock::Pause> parts_{std::in_place};
};

at::Tensor add_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

at::Tensor zeros_if_missing(const OptionalTensor& gradient, const at::Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient : at::zeros_like(like);
}

// Returns the hidden state, the cell state and the workspace: the four gates after activation.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cell,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  FusedKernel kernel(input_gates);
  const auto gates = add_bias(add_bias(input_gates + hidden_gates, input_bias), hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const auto input = parts[0].sigmoid();
  const auto forget = parts[1].sigmoid();
  const auto candidate = parts[2].tanh();
  const auto output = parts[3].sigmoid();
  const auto new_cell = forget * cell + input * candidate;
  const auto hidden = output * new_cell.tanh();
  const auto workspace = at::cat({input, forget, candidate, output}, 1);
  kernel.charge({input_gates, hidden_gates, cell, hidden, new_cell, workspace});
  return {hidden, new_cell, workspace};
}

// Returns the gradients of the gates, of the cell state and of the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& hidden_gradient,
    const OptionalTensor& cell_gradient,
    const at::Tensor& cell,
    const at::Tensor& new_cell,
    const at::Tensor& workspace,
    bool has_bias) {
  FusedKernel kernel(cell);
  const auto parts = workspace.chunk(4, 1);
  const auto &input = parts[0], &forget = parts[1], &candidate = parts[2], &output = parts[3];
  const auto new_cell_tanh = new_cell.tanh();
  const auto of_hidden = zeros_if_missing(hidden_gradient, new_cell);
  const auto of_cell = of_hidden * output * (1 - new_cell_tanh * new_cell_tanh) +
      zeros_if_missing(cell_gradient, new_cell);
  const auto of_gates = at::cat(
      {of_cell * candidate * input * (1 - input), of_cell * cell * forget * (1 - forget),
       of_cell * input * (1 - candidate * candidate),
       of_hidden * new_cell_tanh * output * (1 - output)},
      1);
  const auto of_old_cell = of_cell * forget;
  kernel.charge({of_hidden, of_cell, cell, new_cell, workspace, of_gates, of_old_cell});
  return {of_gates, of_old_cell, has_bias ? of_gates.sum(0) : at::Tensor()};
}

// Returns the hidden state and the workspace: the three gates, the old state, and the hidden part
// of the new gate before the reset gate is applied.
std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hidden,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  FusedKernel kernel(hidden);
  const auto inputs = add_bias(input_gates, input_bias).chunk(3, 1);
  const auto hiddens = add_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (inputs[0] + hiddens[0]).sigmoid();
  const auto update = (inputs[1] + hiddens[1]).sigmoid();
  const auto candidate = (inputs[2] + reset * hiddens[2]).tanh();
  const auto new_hidden = (hidden - candidate) * update + candidate;
  const auto workspace = at::cat({reset, update, candidate, hidden, hiddens[2]}, 1);
  kernel.charge({input_gates, hidden_gates, hidden, new_hidden, workspace});
  return {new_hidden, workspace};
}

// Returns the gradients of the input gates, the hidden gates, the old state and both biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& gradient,
    const at::Tensor& workspace,
    bool has_bias) {
  FusedKernel kernel(gradient);
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &candidate = parts[2], &hidden = parts[3],
             &hidden_part = parts[4];
  const auto of_update = gradient * (hidden - candidate) * update * (1 - update);
  const auto of_candidate = gradient * (1 - update) * (1 - candidate * candidate);
  const auto of_reset = of_candidate * hidden_part * reset * (1 - reset);
  const auto of_inputs = at::cat({of_reset, of_update, of_candidate}, 1);
  const auto of_hiddens = at::cat({of_reset, of_update, of_candidate * reset}, 1);
  const auto of_old = gradient * update;
  kernel.charge({gradient, workspace, of_inputs, of_hiddens, of_old});
  return {
      of_inputs, of_hiddens, of_old, has_bias ? of_inputs.sum(0) : at::Tensor(),
      has_bias ? of_hiddens.sum(0) : at::Tensor()};
}

} // namespace

void register_recurrent_kernels(torch::Library& library, Names& names) {
  register_kernel(library, names, "_thnn_fused_lstm_cell", lstm_cell);
  register_kernel(library, names, "_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  register_kernel(library, names, "_thnn_fused_gru_cell", gru_cell);
  register_kernel(library, names, "_thnn_fused_gru_cell_backward", gru_cell_backward);
}

} // namespace anyrig::virtual_gpu
