#include "graphs/recording.h"

#include "collectives/captured.h"
#include "device/device.h"
#include "dispatch/each_tensor.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "time/capture.h"
#include "time/streams.h"

#include <algorithm>
#include <functional>

namespace anyrig::virtual_gpu {
namespace {

thread_local std::vector<Draw>* draws_of_call = nullptr;

class DrawRecorder {
 public:
  explicit DrawRecorder(std::vector<Draw>& draws) : previous_(draws_of_call) {
    draws_of_call = &draws;
  }
  ~DrawRecorder() { draws_of_call = previous_; }
  DrawRecorder(const DrawRecorder&) = delete;
  DrawRecorder& operator=(const DrawRecorder&) = delete;

 private:
  std::vector<Draw>* previous_;
};

// Makes a generator draw from another state for the lifetime of the object.
class ScopedGeneratorState {
 public:
  ScopedGeneratorState(VirtualGenerator& generator, c10::intrusive_ptr<PhiloxState> state)
      : generator_(generator), own_(generator.exchange_state(std::move(state))) {}
  ~ScopedGeneratorState() { generator_.exchange_state(std::move(own_)); }
  ScopedGeneratorState(const ScopedGeneratorState&) = delete;
  ScopedGeneratorState& operator=(const ScopedGeneratorState&) = delete;

 private:
  VirtualGenerator& generator_;
  c10::intrusive_ptr<PhiloxState> own_;
};

// Returns `value` with each tensor replaced by `change(tensor)`.
template <class Change>
c10::IValue map_recorded(const c10::IValue& value, Change change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(change(tensor));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      tensors.push_back(
          tensor.has_value() ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

bool is_write(const c10::FunctionSchema& schema, size_t i) {
  if (is_collective(schema)) {
    return true; // saving an argument that is only read is harmless
  }
  const c10::Argument& argument = schema.arguments()[i];
  // Batch normalization kernels write to the running statistics, which schemas do not declare.
  return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
      (argument.name().rfind("running_", 0) == 0 &&
       schema.name().find("batch_norm") != std::string::npos);
}

// Returns whether a GPU launches no kernel for the operator: it returns views or uninitialized
// memory.
bool launches_nothing(const c10::FunctionSchema& schema) {
  const auto& name = schema.name();
  if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0 ||
      name.rfind("aten::set_", 0) == 0 || name == "aten::resize_" ||
      name == "aten::record_stream" || name == "aten::_efficientzerotensor") {
    return true;
  }
  const auto& returns = schema.returns();
  return !returns.empty() &&
      std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
        return result.alias_info() != nullptr && !result.alias_info()->isWrite();
      });
}

// Returns whether a tensor is a Python wrapper of other tensors, which has no memory of its own.
bool has_wrapper_tensor(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&found](const at::Tensor& tensor) {
    found |= tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python);
  });
  return found;
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
      a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// Dispatches directly to kernels: a capture is recorded below autograd, autocast and Python's
// modes.
c10::impl::ForceDispatchKeyGuard kernels_only() {
  return {
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
}

// Returns whether a tensor is a host constant, which CUDA copies into the kernel's arguments.
bool is_host_constant(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
}

} // namespace

void record_draw(Draw draw) {
  if (draws_of_call != nullptr) {
    draws_of_call->push_back(std::move(draw));
  }
}

void Recording::run(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack,
    c10::DeviceIndex device) {
  const auto& schema = op.schema();
  const auto stream = current_stream(device);
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  if (waits_for_values(op, arguments)) {
    check_not_captured(stream); // a GPU would return values to the host
  }
  const bool is_kernel = !launches_nothing(schema);
  if (is_kernel) {
    note_captured_work(stream);
    ++size_;
  }
  const std::vector<c10::IValue> given(arguments.begin(), arguments.end());
  if (shape_only()) {
    op.redispatchBoxed(keys, stack);
    if (is_kernel) {
      note_written(schema, given, torch::jit::last(*stack, schema.returns().size()));
    }
    return;
  }
  Call call{op, {}, {}, device, {}};
  if (is_kernel) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (size_t i = 0; i < given.size(); ++i) {
      const bool written = is_write(schema, i);
      if (written) {
        for_each_tensor(given[i], [&](const at::Tensor& tensor) { ghosts_.preserve(tensor); });
      }
    }
  }
  {
    DrawRecorder recorder(call.draws);
    op.redispatchBoxed(keys, stack);
    await_collective(schema, torch::jit::last(*stack, schema.returns().size()));
  }
  const auto results = torch::jit::last(*stack, schema.returns().size());
  if (std::any_of(results.begin(), results.end(), has_wrapper_tensor)) {
    return; // the wrapped tensors were recorded
  }
  std::lock_guard<std::mutex> guard(mutex_);
  for (const c10::IValue& result : results) {
    call.results.push_back(map_recorded(result, [&](const at::Tensor& tensor) {
      bool is_argument = !tensor.defined();
      for (const c10::IValue& value : given) {
        for_each_tensor(value, [&](const at::Tensor& argument) {
          is_argument |= shares_memory(argument, tensor);
        });
      }
      if (is_argument) {
        return at::Tensor();
      }
      ghosts_.add_allocated(tensor);
      return is_kernel ? ghosts_.make_ghost(tensor) : at::Tensor();
    }));
  }
  if (!is_kernel) {
    return;
  }
  // After the call, which may give an argument new memory.
  const bool copies = schema.name() == "aten::copy_";
  for (const c10::IValue& value : given) {
    call.arguments.push_back(map_recorded(value, [&](const at::Tensor& tensor) {
      return is_host_constant(tensor) && !copies ? tensor.clone() : ghosts_.make_ghost(tensor);
    }));
  }
  calls_.push_back(std::move(call));
}

// In ShapeOnly neither the capture nor a replay computes anything, so the values that they would
// write are unknown from now on, and again after each replay.
void Recording::note_written(
    const c10::FunctionSchema& schema,
    const std::vector<c10::IValue>& given,
    c10::ArrayRef<c10::IValue> results) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto note = [this](const at::Tensor& tensor) {
    forget_values(tensor, WhyUnknown::FromOutside);
    if (is_virtual(tensor) && tensor.has_storage()) {
      const auto& storage = tensor.storage();
      const auto begin = reinterpret_cast<uintptr_t>(storage.data());
      written_.emplace(begin, begin + storage.nbytes());
    }
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (is_write(schema, i)) {
      for_each_tensor(given[i], note);
    }
  }
  for (const c10::IValue& result : results) {
    for_each_tensor(result, note);
  }
}

void Recording::begin_body(const at::Tensor& predicate) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++size_;
  open_bodies_.push_back(bodies_.size());
  bodies_.push_back(
      {shape_only() ? at::Tensor() : ghosts_.make_ghost(predicate), calls_.size(), calls_.size()});
}

void Recording::end_body() {
  std::lock_guard<std::mutex> guard(mutex_);
  TORCH_CHECK(
      !open_bodies_.empty(),
      "end_capture_to_conditional_node() can be called only after begin_capture_to_if_node()");
  bodies_[open_bodies_.back()].end = calls_.size();
  open_bodies_.pop_back();
}

void Recording::clear() {
  calls_.clear();
  bodies_.clear();
  written_.clear();
}

void Recording::finish() {
  std::lock_guard<std::mutex> guard(mutex_);
  ghosts_.restore();
  ghosts_ = Ghosts();
  open_bodies_.clear();
}

void Recording::replay(const std::function<PhiloxPosition(const PhiloxState&)>& start_of) {
  if (shape_only()) {
    for (const auto& [begin, end] : written_) {
      forget_addresses(begin, end);
    }
    return;
  }
  const Uncounted uncounted;
  const Clock::Pause pause;
  const auto guard = kernels_only();
  size_t i = 0;
  for (const Body& body : bodies_) {
    if (body.first < i) {
      continue; // inside a body that did not run
    }
    for (; i < body.first; ++i) {
      replay(calls_[i], start_of);
    }
    if (!twin_of(body.predicate).item<bool>()) {
      i = body.end;
    }
  }
  for (; i < calls_.size(); ++i) {
    replay(calls_[i], start_of);
  }
}

void Recording::replay(
    const Call& call,
    const std::function<PhiloxPosition(const PhiloxState&)>& start_of) const {
  const CurrentDevice current(call.device);
  torch::jit::Stack stack = call.arguments;
  if (call.draws.empty()) {
    call.op.callBoxed(stack);
  } else {
    // A call draws from one generator, and its later draws continue from the first one.
    const Draw& first = call.draws.front();
    const PhiloxPosition start = start_of(*first.state);
    auto state = c10::make_intrusive<PhiloxState>();
    state->seed = start.seed;
    state->offset = start.offset + first.offset;
    const ScopedGeneratorState scoped_state(*first.generator, std::move(state));
    call.op.callBoxed(stack);
  }
  await_collective(call.op.schema(), stack);
  for (size_t i = 0; i < call.results.size(); ++i) {
    std::vector<at::Tensor> from;
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { from.push_back(tensor); });
    size_t next = 0;
    for_each_tensor(call.results[i], [&](const at::Tensor& to) {
      const at::Tensor& result = from.at(next++);
      if (to.defined()) {
        twin_of(to).copy_(twin_of(result));
      }
    });
  }
}

std::vector<std::string> Recording::names() const {
  std::vector<std::string> names;
  for (const Call& call : calls_) {
    names.push_back(toString(call.op.operator_name()));
  }
  return names;
}

} // namespace anyrig::virtual_gpu
