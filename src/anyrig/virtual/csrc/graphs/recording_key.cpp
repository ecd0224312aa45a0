#include "graphs/recording_key.h"

#include "dispatch/each_tensor.h"
#include "graphs/cuda_graph.h"
#include "time/streams.h"

#include <c10/core/impl/PyInterpreterHooks.h>
#include <torch/library.h>
#include <torch/version.h>

namespace anyrig::virtual_gpu {
namespace {

// Returns the virtual device of a call's first tensor or device argument; none if it has no such
// argument.
std::optional<c10::DeviceIndex> device_of_call(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::DeviceIndex> device;
  const auto look_at = [&device](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device().type() == kDeviceType && !device.has_value()) {
      device = tensor.device().index();
    }
  };
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      look_at(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        look_at(tensor);
      }
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType && !device.has_value()) {
      device = resolve_device(value.toDevice()).index();
    }
  }
  return device;
}

// Before 2.13 the key precedes Python's, and the calls that a dispatch mode makes skip the key. So
// a call is recorded before the modes see it, and the modes see nothing of a capture.
constexpr bool kComesBeforeModes = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13;

// Runs a call on wrappers in Python. Python's kernel would exclude the keys that precede Python's
// from the calls that the wrappers make, and so the recording key; this excludes the others only.
void call_python(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr auto kAboveRecording = c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^
      (c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey) |
       c10::DispatchKeySet(kRecordingKey));
  const c10::impl::ExcludeDispatchKeyGuard guard(kAboveRecording);
  (*c10::impl::getGlobalPyInterpreter())->dispatch(op, stack);
}

bool has_python_tensor(c10::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for (const c10::IValue& value : arguments) {
    for_each_tensor(value, [&found](const at::Tensor& tensor) {
      found |= tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python);
    });
  }
  return found;
}

void record_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  c10::DispatchKeySet excluded(kRecordingKey);
  if (kComesBeforeModes && !has_python_tensor(arguments)) {
    below = below.remove(c10::DispatchKey::Python);
    excluded = excluded.add(c10::DispatchKey::Python);
  }
  if (below.has(c10::DispatchKey::Python)) { // a wrapper, whose own calls are recorded
    if (kComesBeforeModes) {
      call_python(op, stack);
    } else {
      op.redispatchBoxed(below, stack);
    }
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(excluded);
  const auto device = device_of_call(arguments);
  const auto capture = device.has_value() ? capture_of(current_stream(*device)) : kNoCapture;
  CudaGraph* graph = capture == kNoCapture ? nullptr : CudaGraph::of_capture(capture);
  if (graph == nullptr) {
    op.redispatchBoxed(below, stack);
    return;
  }
  graph->recording().run(op, below, stack, *device);
}

} // namespace

void install_recording() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "_", kRecordingKey, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
}

} // namespace anyrig::virtual_gpu
