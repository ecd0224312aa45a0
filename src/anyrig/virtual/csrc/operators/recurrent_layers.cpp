// Recurrent layers: nn.LSTM, nn.GRU and nn.RNN. They are computed step by step, by PyTorch's code
// for devices without cuDNN, and take the time of cuDNN's operator (records/recurrent_record.h).
//
//   forward     [steps: take no time]  charge
//   backward    charge: RecurrentBackward  [the nodes of the steps: take no time]


#include "operators/kernels.h"

#include "dispatch/twin.h"
#include "time/clock.h"
#include "time/fused_nodes.h"
#include "time/records/recurrent_record.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLayers[] = {
    "lstm.input",     "lstm.data",     "gru.input",      "gru.data",
    "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"};

// The arguments of one call. Those of packed sequences begin with (data, batch sizes), the others
// with the input alone; then follow the same: states, weights, …
class LayerArguments {
 public:
  LayerArguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : name_(op.schema().name()),
        values_(torch::jit::last(stack, op.schema().arguments().size())),
        is_packed_(op.schema().overload_name() == "data") {}

  const at::Tensor& input() const { return values_[0].toTensor(); }
  std::vector<at::Tensor> weights() const { return value(2).toTensorVector(); }
  double layers() const { return static_cast<double>(value(4).toInt()); }
  bool drops_out() const { return value(5).toDouble() > 0 && trains(); }
  bool trains() const { return value(6).toBool(); }
  bool is_bidirectional() const { return value(7).toBool(); }

  double steps() const {
    const int64_t dimension = !is_packed_ && value(8).toBool() ? 1 : 0;
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

// Returns the dtype in which cuDNN computes: autocast casts the operands of its operator.
at::ScalarType dtype_of(const at::Tensor& input) {
  const bool casts =
      at::autocast::is_autocast_enabled(kDeviceType) && input.scalar_type() != at::kDouble;
  return casts ? at::autocast::get_autocast_dtype(kDeviceType) : input.scalar_type();
}

bool runs_in_transform() {
  using c10::DispatchKey;
  return c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerBackMode);
}

// Returns whether a GPU runs cuDNN: use_cudnn of aten/src/ATen/native/RNN.cpp. Fake tensors have the
// steps alone.
bool runs_cudnn(const LayerArguments& arguments) {
  const at::Tensor& input = arguments.input();
  if (!is_virtual(input) || input.key_set().has(c10::DispatchKey::Python) ||
      !at::globalContext().userEnabledCuDNN() || !arguments.has_expected_dimensions() ||
      input.numel() == 0) {
    return false;
  }
  switch (input.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
      return true;
    case at::kBFloat16:
      return devices()[input.device().index()].capability_major >= 8;
    default:
      return false;
  }
}

RecurrentLayers layers_of(const LayerArguments& arguments) {
  const at::Tensor& input = arguments.input();
  const auto weights = arguments.weights();
  const at::ScalarType dtype = dtype_of(input);
  RecurrentLayers all;
  all.steps = arguments.steps();
  all.inputs = static_cast<double>(input.size(-1));
  all.rows = static_cast<double>(input.numel()) / all.inputs;
  all.layers = arguments.layers();
  all.directions = arguments.is_bidirectional() ? 2 : 1;
  all.gates = arguments.gates();
  all.hidden = static_cast<double>(weights[1].size(0)) / all.gates;
  const auto state = static_cast<double>(weights[1].size(1));
  all.projected = state == all.hidden ? 0 : state;
  all.drops_out = arguments.drops_out();
  all.precision = precision_of_recurrent(dtype);
  all.element_bytes = static_cast<double>(c10::elementSize(dtype));
  return all;
}

void charge(const char* name, c10::DeviceIndex device, const Works& works) {
  const RunningOperator running(name);
  Clock::get().run(current_stream(device), works);
}

// What the backward pass of a call needs.
struct LayerBackward : torch::CustomClassHolder {
  Works works;
  NodeSpan steps;
  c10::DeviceIndex device = 0;
  bool trains = true;
};

// Passes the gradients of the results on to the nodes of the steps.
struct RecurrentBackward : torch::autograd::Function<RecurrentBackward> {
  static variable_list forward(
      AutogradContext* context,
      c10::intrusive_ptr<LayerBackward> layers,
      at::TensorList results) {
    context->set_materialize_grads(false);
    context->saved_data["layers"] = c10::IValue::make_capsule(std::move(layers));
    Clock::get().note_node();
    variable_list same;
    for (const auto& result : results) {
      same.push_back(result.detach());
    }
    context->save_for_backward({same[0]}); // cuDNN reads it: refuse a result changed in place
    return same;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    context->get_saved_variables();
    const auto capsule = context->saved_data.at("layers").toCapsule();
    const auto& layers = static_cast<const LayerBackward&>(*capsule);
    TORCH_CHECK(layers.trains, "cudnn RNN backward can only be called in training mode");
    charge("aten::_cudnn_rnn_backward", layers.device, layers.works);
    fuse_nodes(layers.steps);
    gradients.insert(gradients.begin(), at::Tensor()); // of the first argument
    return gradients;
  }
};

void add_backward(
    const RecurrentLayers& all,
    bool by_weights,
    bool trains,
    NodeSpan steps,
    c10::DeviceIndex device,
    torch::jit::Stack* stack,
    size_t count) {
  variable_list results;
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    results.push_back((*stack)[i].toTensor());
    if (!results.back().requires_grad() || results.back()._fw_grad(/*level=*/0).defined()) {
      return;
    }
  }
  auto layers = c10::make_intrusive<LayerBackward>();
  layers->works = recurrent_backward(all, by_weights);
  layers->steps = steps;
  layers->device = device;
  layers->trains = trains;
  auto with_node = RecurrentBackward::apply(std::move(layers), at::TensorList(results));
  torch::jit::drop(*stack, count);
  for (auto& result : with_node) {
    stack->emplace_back(std::move(result));
  }
}

void run_recurrent_layers(
    const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto run_steps = [&] {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  };
  const LayerArguments arguments(op, *stack);
  if (!runs_cudnn(arguments)) {
    run_steps();
    return;
  }
  arguments.weights()[0].storage(); // read by cuDNN; raises for a tensor that torch.func.grad wraps
  if (runs_in_transform()) {
    run_steps();
    return;
  }
  const RecurrentLayers all = layers_of(arguments);
  const auto weights = arguments.weights();
  const bool by_weights = std::any_of(weights.begin(), weights.end(), [](const auto& weight) {
    return weight.requires_grad();
  });
  const bool trains = arguments.trains();
  const c10::DeviceIndex device = arguments.input().device().index();
  NodeSpan steps = NodeSpan::begin();
  {
    const Clock::Pause pause;
    run_steps(); // takes the arguments from the stack
  }
  steps.finish();
  charge("aten::_cudnn_rnn", device, recurrent_forward(all));
  add_backward(all, by_weights, trains, steps, device, stack, op.schema().returns().size());
}

} // namespace

void register_recurrent_layers(torch::Library& library, Names& names) {
  static auto* autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
  for (const char* name : kLayers) {
    // The CUDA key serves tensors of inference mode.
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_recurrent_layers>());
    autograd->impl(name, torch::CppFunction::makeFromBoxedFunction<&run_recurrent_layers>());
    names.insert(name);
  }
}

} // namespace anyrig::virtual_gpu
