// Recurrent layers: nn.LSTM, nn.GRU and nn.RNN, as cuDNN's operator: one node of the graph, which
// takes its time (records/recurrent_record.h) and its memory (temporaries/recurrent_memory.h). The
// values come from PyTorch's steps for the host, a graph of its own:
//
//   the program's graph    input, states, weights ─▶ RecurrentFunction ─▶ results
//                                │ copies                ▲ values
//   the host's graph             └──▶ step ─▶ step ─▶ step
//
// In ShapeOnly, the steps compute shapes alone, and there is no host's graph.
//
// Longer than 400 lines: both directions share what cuDNN's call reads of its arguments.

#include "operators/kernels.h"

#include "dispatch/twin.h"
#include "memory/memory.h"
#include "operators/recurrent_arguments.h"
#include "operators/recurrent_second_backward.h"
#include "operators/recurrent_steps.h"
#include "temporaries/recurrent_memory.h"
#include "time/clock.h"
#include "time/records/recurrent_record.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLayers[] = {"lstm.input",     "lstm.data",      "gru.input",
                                   "gru.data",       "rnn_tanh.input", "rnn_tanh.data",
                                   "rnn_relu.input", "rnn_relu.data"};

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
  const auto tensors = arguments.tensors();
  const bool are_together = std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return is_virtual(tensor) && tensor.device() == input.device();
  });
  if (!are_together || input.key_set().has(c10::DispatchKey::Python) ||
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

// An undefined `from` is zero: the gradient of a leaf on which no result depends.
void copy_values(const at::Tensor& from, const at::Tensor& to) {
  if (!shape_only()) {
    from.defined() ? twin_of(to).copy_(from.detach()) : twin_of(to).zero_();
  }
}

bool is_defined(const at::Tensor& tensor) {
  return tensor.defined();
}

int64_t total_elements(const at::TensorList& tensors) {
  int64_t elements = 0;
  for (const auto& tensor : tensors) {
    elements += tensor.numel();
  }
  return elements;
}

// Allocates what the operator copies to have it dense, step by step.
c10::DataPtr allocate_dense(const at::Tensor& tensor, bool is_batch_first) {
  const at::Tensor in_steps = is_batch_first ? tensor.transpose(0, 1) : tensor;
  return in_steps.is_contiguous() ? c10::DataPtr()
                                  : allocate_workspace(tensor.nbytes(), tensor.device().index());
}

// Returns an empty tensor that is dense step by step.
at::Tensor empty_in_steps(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    bool is_batch_first) {
  if (!is_batch_first) {
    return at::empty(sizes, options);
  }
  return at::empty_strided(sizes, {sizes[2], sizes[0] * sizes[2], 1}, options);
}

// One call of the operator, from the forward pass to the backward pass.
struct LayerCall : torch::CustomClassHolder {
  RecurrentLayers layers;
  at::ScalarType dtype = at::kFloat;
  size_t states = 1;
  bool trains = true;
  bool is_batch_first = false;
  bool by_weights = false;
  HostSteps steps;
};

struct Results {
  variable_list results;
  variable_list kept; // for the backward pass
};

// Computes the results, and allocates as _cudnn_rnn of aten/src/ATen/native/cudnn/RNN.cpp does.
Results run_forward(const LayerCall& call, const at::Tensor& input, at::TensorList weights) {
  const c10::DeviceIndex device = input.device().index();
  const auto options = input.options().dtype(call.dtype).requires_grad(false);
  const auto bytes = options.dtype(at::kByte);
  Results all;
  if (input.scalar_type() != call.dtype) { // autocast
    all.kept.push_back(at::empty(input.sizes(), options));
    all.kept.push_back(at::empty({total_elements(weights)}, options));
  }
  const auto dense = allocate_dense(input, call.is_batch_first);
  for (const auto& value : call.steps.results) {
    const bool is_output = all.results.empty();
    all.results.push_back(empty_in_steps(
        value.sizes(), options.dtype(value.scalar_type()), is_output && call.is_batch_first));
    copy_values(value, all.results.back());
  }
  if (call.dtype == at::kBFloat16 && input.scalar_type() == call.dtype) {
    // torch.backends.cudnn.is_acceptable: the weights are not one piece of memory, so all are copied.
    all.kept.push_back(at::empty({total_elements(weights)}, options));
  }
  const auto workspace =
      allocate_workspace(static_cast<size_t>(recurrent_workspace_bytes(call.layers)), device);
  if (call.trains) {
    all.kept.push_back(at::empty({recurrent_reserve_bytes(call.layers)}, bytes));
  }
  return all;
}

// Computes the gradients, and allocates as _cudnn_rnn_backward does.
variable_list run_backward(
    const LayerCall& call,
    const variable_list& tensors,
    const variable_list& results,
    const variable_list& of_results,
    const variable_list& of_leaves) {
  const at::Tensor& input = tensors[0];
  const auto options = input.options().dtype(call.dtype).requires_grad(false);
  const auto workspace = [&] {
    return allocate_workspace(
        static_cast<size_t>(recurrent_workspace_bytes(call.layers)), input.device().index());
  };
  c10::DataPtr copied_reserve;
  if (torch::autograd::get_current_graph_task_keep_graph()) { // cuDNN writes to it
    copied_reserve = allocate_workspace(
        static_cast<size_t>(recurrent_reserve_bytes(call.layers)), input.device().index());
  }
  variable_list zeros, gradients;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!of_results[i].defined()) {
      zeros.push_back(at::empty(results[i].sizes(), options));
    }
  }
  const auto add = [&](const at::Tensor& like, bool in_steps) {
    gradients.push_back(
        empty_in_steps(like.sizes(), like.options().requires_grad(false), in_steps));
  };
  {
    const auto dense = allocate_dense(input, call.is_batch_first);
    const auto dense_gradient = of_results[0].defined()
        ? allocate_dense(of_results[0], call.is_batch_first)
        : c10::DataPtr();
    add(input, call.is_batch_first);
    for (size_t i = 0; i < call.states; ++i) {
      add(tensors[1 + i], false);
    }
    workspace();
  }
  if (call.by_weights) {
    const auto weights = at::TensorList(tensors).slice(1 + call.states);
    const auto dense = allocate_dense(input, call.is_batch_first);
    const auto all =
        at::empty({total_elements(weights)}, weights[0].options().requires_grad(false));
    workspace();
    int64_t first = 0;
    for (const auto& weight : weights) {
      gradients.push_back(all.narrow(0, first, weight.numel()).view(weight.sizes()));
      first += weight.numel();
    }
  }
  gradients.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].requires_grad()) {
      copy_values(of_leaves[i], gradients[i]);
    } else {
      gradients[i].reset(); // cuDNN computes it, but the steps do not
    }
  }
  return gradients;
}

// Its tensors are the input, the states and the weights.
struct RecurrentFunction : torch::autograd::Function<RecurrentFunction> {
  static variable_list forward(
      AutogradContext* context,
      c10::intrusive_ptr<LayerCall> call,
      at::TensorList tensors) {
    context->set_materialize_grads(false);
    Clock::get().note_node();
    const Clock::Pause pause;
    Results all = run_forward(*call, tensors[0], tensors.slice(1 + call->states));
    variable_list saved = tensors.vec();
    saved.insert(saved.end(), all.results.begin(), all.results.end());
    saved.insert(saved.end(), all.kept.begin(), all.kept.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return all.results;
  }

  static variable_list backward(AutogradContext* context, variable_list of_results) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data.at("call").toCapsule();
    auto& call = static_cast<LayerCall&>(*capsule);
    const size_t operands = call.steps.leaves.size(), results = call.steps.results.size();
    if (std::none_of(of_results.begin(), of_results.end(), is_defined)) {
      return variable_list(1 + operands);
    }
    TORCH_CHECK(call.trains, "cudnn RNN backward can only be called in training mode");
    const variable_list tensors(saved.begin(), saved.begin() + static_cast<int64_t>(operands));
    charge(
        "aten::_cudnn_rnn_backward", tensors[0].device().index(),
        recurrent_backward(call.layers, call.by_weights));
    const Clock::Pause pause;
    const auto of_leaves = differentiate(call, of_results);
    const auto first_result = saved.begin() + static_cast<int64_t>(operands);
    auto gradients = run_backward(
        call, tensors, {first_result, first_result + static_cast<int64_t>(results)}, of_results,
        of_leaves);
    if (at::GradMode::is_enabled()) {
      variable_list origins = tensors;
      std::copy_if(of_results.begin(), of_results.end(), std::back_inserter(origins), is_defined);
      gradients = without_second_backward(std::move(gradients), origins);
    }
    gradients.insert(gradients.begin(), at::Tensor()); // of the call
    return gradients;
  }

 private:
  // Returns the gradients of the leaves on the host.
  static variable_list differentiate(LayerCall& call, const variable_list& of_results) {
    variable_list of_leaves(call.steps.leaves.size());
    if (shape_only()) {
      return of_leaves;
    }
    variable_list results, gradients, leaves;
    for (size_t i = 0; i < of_results.size(); ++i) {
      if (of_results[i].defined()) {
        results.push_back(call.steps.results[i]);
        gradients.push_back(twin_of(of_results[i]).detach().clone());
      }
    }
    for (const auto& leaf : call.steps.leaves) {
      if (leaf.requires_grad()) {
        leaves.push_back(leaf);
      }
    }
    const bool keeps = torch::autograd::get_current_graph_task_keep_graph();
    auto found = torch::autograd::grad(
        results, leaves, gradients, keeps, /*create_graph=*/false, /*allow_unused=*/true);
    auto next = found.begin();
    for (size_t i = 0; i < of_leaves.size(); ++i) {
      if (call.steps.leaves[i].requires_grad()) {
        of_leaves[i] = *next++;
      }
    }
    return of_leaves;
  }
};

bool has_forward_gradient(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor._fw_grad(/*level=*/0).defined();
  });
}

void run_recurrent_layers(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
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
  const auto tensors = arguments.tensors();
  const c10::DeviceIndex device = arguments.input().device().index();
  const CurrentDevice guard(device);
  auto call = c10::make_intrusive<LayerCall>();
  call->layers = layers_of(arguments);
  if (has_forward_gradient(tensors)) {
    {
      const Clock::Pause pause;
      run_steps();
    }
    charge("aten::_cudnn_rnn", device, recurrent_forward(call->layers));
    return;
  }
  const auto needs_gradient = [](const auto& tensor) { return tensor.requires_grad(); };
  const auto weights = arguments.weights();
  const bool differentiates =
      at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), needs_gradient);
  call->dtype = dtype_of(arguments.input());
  call->states = arguments.states().size();
  call->trains = arguments.trains();
  call->is_batch_first = arguments.is_batch_first();
  call->by_weights = std::any_of(weights.begin(), weights.end(), needs_gradient);
  call->steps = run_host_steps(op, arguments, tensors, call->dtype, differentiates);
  charge("aten::_cudnn_rnn", device, recurrent_forward(call->layers));
  variable_list results;
  if (differentiates) {
    results = RecurrentFunction::apply(std::move(call), at::TensorList(tensors));
  } else {
    const Clock::Pause pause;
    results = run_forward(*call, tensors[0], weights).results;
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (auto& result : results) {
    stack->emplace_back(std::move(result));
  }
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
