#include "hazards/saved_value.h"

#include "device/backward_threads.h"
#include "dispatch/twin.h"
#include "hazards/write_watch.h"
#include "time/origin.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <pybind11/pybind11.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

namespace py = pybind11;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::SavedVariableHooks;

// Guarded by the GIL.
PyObject* report_function = nullptr;

// Finds the line once for all values that one operator saves. They follow the same node.
int32_t line_of_save() {
  thread_local uint64_t last_sequence = 0;
  thread_local int32_t last_line = -1;
  const uint64_t sequence = at::sequence_number::peek();
  if (sequence == 0 || sequence != last_sequence) {
    last_sequence = sequence;
    last_line = find_line();
  }
  return last_line;
}

c10::StorageImpl* memory_object(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

py::object as_line(int32_t line) {
  if (line < 0) {
    return py::none();
  }
  const auto& [file, number] = origin_lines()[static_cast<size_t>(line)];
  return py::make_tuple(file, number);
}

void report(
    const at::Tensor& tensor,
    int32_t saved_line,
    int32_t written_line,
    const std::string* operator_name,
    const Node* by) {
  py::gil_scoped_acquire gil;
  if (report_function == nullptr) {
    return;
  }
  try {
    py::handle callable(report_function);
    callable(
        py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)), as_line(saved_line),
        as_line(written_line),
        operator_name == nullptr ? py::none() : py::object(py::cast(*operator_name)),
        by == nullptr ? py::none() : py::object(py::cast(by->name())));
  } catch (py::error_already_set& error) {
    error.restore();
    python_error raised;
    raised.persist();
    throw std::move(raised);
  }
}

class SavedValue;

// The values by the tensor that was saved. Never freed: values may outlive static objects.
struct SavedValues {
  std::mutex mutex;
  std::unordered_multimap<c10::TensorImpl*, SavedValue*> by_tensor;

  static SavedValues& get() {
    static auto* values = new SavedValues();
    return *values;
  }
};

class SavedValue final : public SavedVariableHooks {
 public:
  SavedValue() = default;
  SavedValue(const SavedValue&) = delete;
  SavedValue& operator=(const SavedValue&) = delete;

  ~SavedValue() override {
    auto& values = SavedValues::get();
    std::lock_guard<std::mutex> guard(values.mutex);
    const auto [first, last] = values.by_tensor.equal_range(tensor_address_);
    const auto own =
        std::find_if(first, last, [this](const auto& one) { return one.second == this; });
    if (own != last) {
      values.by_tensor.erase(own);
    }
  }

  // `original`, the tensor that was saved, was given other memory at `line`.
  void follow(const at::Tensor& original, int32_t line) {
    assigned_line_ = line;
    if (!original.is_same(tensor_)) {
      assigned_ = original.tensor_data();
    }
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    version_ = static_cast<uint32_t>(tensor._version());
    output_number_ = tensor.output_nr();
    // The node outlives this object: either the node itself saves its output, or the SavedVariable
    // holds the node.
    node_ = tensor.grad_fn().get();
    storage_ = memory_object(tensor);
    if (keeps_itself(tensor)) {
      tensor_ = tensor;
    } else {
      // A node that held its own output would never be freed. The copy has the same memory and
      // version counter.
      tensor_ = tensor.tensor_data();
    }
    original_.emplace(tensor.getIntrusivePtr());
    tensor_address_ = tensor.unsafeGetTensorImpl();
    {
      auto& values = SavedValues::get();
      std::lock_guard<std::mutex> guard(values.mutex);
      values.by_tensor.emplace(tensor.unsafeGetTensorImpl(), this);
    }
    if (is_virtual(tensor) && tensor.layout() == at::kStrided && storage_ != nullptr &&
        tensor.storage().data() != nullptr && !is_of_python(tensor) && has_extent(tensor)) {
      memory_.emplace(tensor);
      address_ = tensor.storage().data();
      line_ = line_of_save();
    }
  }

  at::Tensor call_unpack_hook() override {
    const auto node = torch::autograd::get_current_node();
    check_version(node.get());
    at::Tensor tensor = tensor_;
    if (assigned_.defined() && node_ != node.get()) {
      tensor = assigned_; // PyTorch holds an input itself, and the old memory of an output
    }
    if (memory_.has_value() && watches_writes()) {
      if (memory_object(tensor) != storage_) {
        report(tensor, line_, assigned_line_, nullptr, node.get());
      } else if (tensor.storage().data() == address_) {
        if (const auto write = memory_->first_write()) {
          report(tensor, line_, write->line, &write->operator_name, node.get());
        }
      }
    }
    return tensor;
  }

 private:
  static bool is_of_python(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->is_python_dispatch();
  }

  // Returns whether this object may hold the tensor itself: it is not an output of the node that
  // saves it. Subclasses written in Python would lose their attributes in a copy, so an input of
  // theirs is held: the node of an input is older than the node that saves it.
  static bool keeps_itself(const at::Tensor& tensor) {
    if (tensor.is_leaf()) {
      return true;
    }
    const auto node = tensor.grad_fn();
    return is_of_python(tensor) && node->sequence_nr() + 1 < at::sequence_number::peek();
  }

  // PyTorch does not compare versions of values that have hooks.
  void check_version(const Node* running) const {
    const auto version = static_cast<uint32_t>(tensor_._version());
    if (version == version_) {
      return;
    }
    std::ostringstream message;
    message << "one of the variables needed for gradient computation has been modified by an "
               "inplace operation: ["
            << tensor_.toString() << " ";
    if (tensor_.is_nested()) {
      message << tensor_._nested_tensor_size() << "]";
    } else {
      message << tensor_.sizes() << "]";
    }
    if (node_ != nullptr) {
      message << ", which is output " << output_number_ << " of " << name_of_node(running) << ",";
    }
    message << " is at version " << version << "; expected version " << version_ << " instead.";
    message
        << (torch::autograd::AnomalyMode::is_enabled()
                ? " Hint: the backtrace further above shows the operation that failed to "
                  "compute its gradient. The variable in question was changed in there or "
                  "anywhere later. Good luck!"
                : " Hint: enable anomaly detection to find the operation that failed to "
                  "compute its gradient, with torch.autograd.set_detect_anomaly(True, "
                  "check_nan=False).");
    TORCH_CHECK(false, message.str());
  }

  // Returns the name of the node that has made the tensor: for an input, as it is now.
  std::string name_of_node(const Node* running) const {
    if (node_ != running) {
      if (auto original = original_->lock()) {
        const at::Tensor input(std::move(original));
        if (const auto node = input.grad_fn()) {
          return node->name();
        }
      }
    }
    return node_->name();
  }

  at::Tensor tensor_;
  // Weak, so that no other tensor gets its address.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> original_;
  c10::TensorImpl* tensor_address_ = nullptr;
  at::Tensor assigned_; // a copy of the original with its new memory
  int32_t assigned_line_ = -1;
  const Node* node_ = nullptr;
  c10::StorageImpl* storage_ = nullptr; // only compared
  const void* address_ = nullptr;
  std::optional<WatchedMemory> memory_;
  uint64_t output_number_ = 0;
  uint32_t version_ = 0;
  int32_t line_ = -1;
};

Engine* torch_engine = nullptr;

// PyTorch's engine, but for the hooks of saved tensors.
class WatchingEngine final : public Engine {
 public:
  static Engine& get() {
    static auto* engine = new WatchingEngine(); // never freed, as PyTorch's engine
    return *engine;
  }

  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    return torch_engine->execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return torch_engine->make_anomaly_metadata();
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    auto hooks_of_program = torch_engine->get_default_saved_variable_hooks();
    return hooks_of_program != nullptr ? std::move(hooks_of_program)
                                       : std::make_unique<SavedValue>();
  }
};

} // namespace

void watch_saved_values(PyObject* report) {
  Py_XINCREF(report);
  Py_XDECREF(std::exchange(report_function, report));
  if (torch_engine == nullptr) {
    torch_engine = &Engine::get_default_engine();
  }
  // The threads of backward passes belong to PyTorch's engine; later, it would not be found.
  start_backward_threads();
  watch_writes(true);
  torch::autograd::set_default_engine_stub(&WatchingEngine::get);
}

void note_assigned(const at::Tensor& tensor) {
  const int32_t line = find_line();
  auto& values = SavedValues::get();
  std::lock_guard<std::mutex> guard(values.mutex);
  const auto [first, last] = values.by_tensor.equal_range(tensor.unsafeGetTensorImpl());
  std::for_each(first, last, [&](const auto& one) { one.second->follow(tensor, line); });
}

void unwatch_saved_values() {
  if (torch_engine == nullptr) {
    return;
  }
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *torch_engine; });
  watch_writes(false);
  Py_XDECREF(std::exchange(report_function, nullptr));
}

} // namespace anyrig::virtual_gpu
