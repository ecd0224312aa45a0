#include "dispatch.h"

#include "clock.h"
#include "container.h"
#include "cublas.h"
#include "cuda_only.h"
#include "device_check.h"
#include "generator.h"
#include "host_memory.h"
#include "kernels.h"
#include "shape_only.h"
#include "streams.h"
#include "twin.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

namespace anyrig::virtual_gpu {
namespace {

struct Operand {
  at::Tensor owner;
  at::Tensor twin;
  c10::StorageImpl* shadow; // none of a container
  bool written;
};

c10::StorageImpl* storage_impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// One call of an operator: its arguments become twins, the kernel of the CPU (or Meta) runs, and
// its results become tensors of the device.
class Call {
 public:
  Call(
      const OperatorPlan& plan,
      const c10::OperatorHandle& op,
      c10::DispatchKey host_key,
      torch::jit::Stack* stack)
      : plan_(plan),
        host_key_(host_key),
        op_(op),
        stack_(stack),
        argument_count_(op.schema().arguments().size()),
        first_argument_(stack->size() - argument_count_),
        device_(kDeviceType, static_cast<c10::DeviceIndex>(current_device())),
        first_operand_(argument_count_, -1) {}

  void run() {
    check_not_forked();
    if (plan_.check == DeviceCheck::Convolution || mixes_devices()) {
      check_devices(plan_, op_.schema(), arguments());
      if (plan_.check == DeviceCheck::Foreach) {
        // The CPU's kernel composes operators that come back here tensor by tensor.
        op_.redispatchBoxed(c10::DispatchKeySet(host_key_), stack_);
        return;
      }
    }
    for (size_t i = 0; i < argument_count_; ++i) {
      take(i);
    }
    if (operands_.empty() && sees_meta_) {
      // A fake tensor passes for a device tensor until here; its shapes are all there is.
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack_);
      return;
    }
    if (plan_.refusal != nullptr && !operands_.empty() && operands_[0].owner.numel() > 0) {
      check_not_refused(*plan_.refusal, operands_[0].owner.scalar_type());
    }
    provide_generators();
    CurrentDevice guard(device_.index());
    run_kernel();
    follow_written();
    give_results();
    if (plan_.uses_cublas) {
      provide_cublas_workspace(device_.index());
    }
    charge();
    keep_twins();
  }

 private:
  c10::IValue& argument(size_t i) {
    return (*stack_)[first_argument_ + i];
  }

  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack_->data() + first_argument_, argument_count_);
  }

  // Whether any two tensors among the arguments are on different devices.
  bool mixes_devices() {
    std::optional<c10::Device> common;
    const auto differs = [&common](const at::Tensor& tensor) {
      if (!tensor.defined()) {
        return false;
      }
      if (!common.has_value()) {
        common = tensor.device();
      }
      return *common != tensor.device();
    };
    for (size_t i = 0; i < argument_count_; ++i) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) {
        if (differs(value.toTensor())) {
          return true;
        }
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          if (differs(tensor)) {
            return true;
          }
        }
      } else if (value.isOptionalTensorList()) {
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
          if (tensor.has_value() && differs(*tensor)) {
            return true;
          }
        }
      }
    }
    return false;
  }

  // Puts twins in the place of one argument's tensors.
  void take(size_t i) {
    c10::IValue& value = argument(i);
    if (value.isTensor()) {
      const at::Tensor tensor = std::move(value).toTensor();
      first_operand_[i] = static_cast<int>(operands_.size());
      value = twin(tensor, i);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> twins;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        twins.push_back(twin(tensor, i));
      }
      value = std::move(twins);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> twins;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        twins.push_back(
            tensor.has_value() ? std::optional<at::Tensor>(twin(*tensor, i)) : std::nullopt);
      }
      value = std::move(twins);
    } else if (value.isDevice()) {
      take_device(value);
    }
  }

  at::Tensor twin(const at::Tensor& tensor, size_t i) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (is_virtual(tensor)) {
      if (operands_.empty()) {
        device_ = tensor.device();
      }
      if (is_container(tensor)) {
        return container_twin(tensor, i);
      }
      bytes_ += static_cast<double>(tensor.nbytes());
      at::Tensor twin = twin_of(tensor);
      operands_.push_back({tensor, twin, storage_impl_of(twin), plan_.is_written[i]});
      return twin;
    }
    sees_meta_ |= tensor.is_meta();
    if (tensor.is_cpu() && tensor.has_storage()) {
      host_storages_.push_back(storage_impl_of(tensor));
      return twin_of(tensor);
    }
    return tensor;
  }

  at::Tensor container_twin(const at::Tensor& container, size_t i) {
    std::vector<at::Tensor> twins;
    for (const at::Tensor& part : parts_of(container)) {
      bytes_ += static_cast<double>(part.nbytes());
      twins.push_back(twin_of(part));
      parts_.push_back({part, twins.back(), storage_impl_of(twins.back()), plan_.is_written[i]});
    }
    at::Tensor twin = contain(container, twins);
    operands_.push_back({container, twin, nullptr, plan_.is_written[i]});
    return twin;
  }

  void follow_written() {
    for (const auto& part : parts_) {
      if (part.written) {
        follow(part.owner, part.twin);
      }
    }
    for (const auto& operand : operands_) {
      if (!operand.written) {
        continue;
      }
      if (operand.shadow != nullptr) {
        follow(operand.owner, operand.twin);
      } else {
        follow_container(operand.owner, operand.twin, results(parts_of(operand.twin)));
      }
    }
  }

  void keep_twins() {
    for (auto& operand : operands_) {
      if (operand.shadow != nullptr) {
        keep_twin(operand.owner, std::move(operand.twin));
      }
    }
  }

  void take_device(c10::IValue& value) {
    const c10::Device device = value.toDevice();
    if (device.type() != kDeviceType) {
      returns_to_host_ = true;
      return;
    }
    device_ = resolve_device(device);
    value = kernel_device();
  }

  void provide_generators() {
    for (size_t i = 0; i < argument_count_; ++i) {
      if (!plan_.is_generator[i]) {
        continue;
      }
      c10::IValue& value = argument(i);
      std::optional<at::Generator> given;
      if (!value.isNone()) {
        given = value.toGenerator();
      }
      value = generator_of(given, device_.index()).take_host_generator();
    }
  }

  void run_kernel() {
    if (shape_only()) {
      run_meta_kernel();
    } else if (plan_.makes_tensors) {
      KernelScope scope(device_.index());
      run_kernel_of(host_key_);
    } else {
      run_kernel_of(host_key_);
    }
  }

  void run_kernel_of(c10::DispatchKey key) {
    if (key == c10::DispatchKey::CPU && !plan_.widened.empty() &&
        needs_widening(plan_.widened, op_.schema(), *stack_)) {
      run_widened(plan_.widened, op_.schema(), *stack_, [&] { call_kernel_of(key); });
    } else {
      call_kernel_of(key);
    }
  }

  void call_kernel_of(c10::DispatchKey key) {
    const c10::DispatchKeySet keys(key);
    if (plan_.host_kernel.has_value()) {
      plan_.host_kernel->callBoxed(op_, keys, stack_);
    } else {
      op_.redispatchBoxed(keys, stack_);
    }
  }

  void run_meta_kernel() {
    if (needs_values(op_, arguments())) {
      const auto& name = op_.schema().name();
      require_assumed_values(name);
      TORCH_CHECK_NOT_IMPLEMENTED(
          answer_with_ones(op_, stack_),
          name, " depends on values, and there is none to assume for it");
      return;
    }
    run_kernel_of(c10::DispatchKey::Meta);
  }

  void give_results() {
    const size_t count = plan_.returned_argument.size();
    const size_t first_result = stack_->size() - count;
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& value = (*stack_)[first_result + i];
      if (value.isTensor()) {
        const int argument = plan_.returned_argument[i];
        const int operand = argument < 0 ? -1 : first_operand_[argument];
        if (operand >= 0 && operand < static_cast<int>(operands_.size())) {
          value = operands_[operand].owner;
        } else {
          value = result(std::move(value).toTensor());
        }
      } else if (value.isTensorList()) {
        value = results(value.toTensorVector());
      }
    }
  }

  std::vector<at::Tensor> results(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> results;
    for (const at::Tensor& tensor : tensors) {
      results.push_back(result(tensor));
    }
    return results;
  }

  // What the caller gets for a tensor that the kernel returned.
  at::Tensor result(at::Tensor tensor) {
    if (!tensor.defined() || returns_to_host_ || !(tensor.is_cpu() || tensor.is_meta())) {
      return tensor;
    }
    for (const auto* operands : {&operands_, &parts_}) {
      for (const auto& operand : *operands) {
        if (operand.twin.is_same(tensor)) {
          return operand.owner;
        }
      }
    }
    if (is_container(tensor)) {
      return contain(tensor, results(parts_of(tensor)));
    }
    if (tensor.layout() == at::kStrided && tensor.has_storage()) {
      const auto* storage = storage_impl_of(tensor);
      for (const auto* operands : {&operands_, &parts_}) {
        for (const auto& operand : *operands) {
          if (operand.shadow == storage) {
            make_virtual_view(tensor, operand.owner);
            return tensor;
          }
        }
      }
      for (const auto* host : host_storages_) {
        if (host == storage) {
          tensor = tensor.clone();
          break;
        }
      }
    }
    make_virtual(tensor, device_.index());
    bytes_ += static_cast<double>(tensor.nbytes());
    if (plan_.work == Work::Convolution) {
      convolved_numbers_ = static_cast<double>(tensor.numel());
    }
    return tensor;
  }

  void charge() {
    auto& clock = Clock::get();
    if (!clock.enabled()) {
      return;
    }
    const bool half = !operands_.empty() && operands_[0].owner.element_size() == 2;
    clock.run(current_stream(device_.index()), flops(), bytes_, half);
  }

  // Multiplications and additions of the operators that are dense in them.
  double flops() const {
    const auto at = [this](size_t i) -> const at::Tensor& { return operands_[i].owner; };
    const size_t count = operands_.size();
    if (!parts_.empty()) {
      return 0; // sparse and nested ones: fewer than their sizes say, and sizes may be ragged
    }
    switch (plan_.work) {
      case Work::Product:
        return count < 2 ? 0 : 2.0 * static_cast<double>(at(0).numel() * at(1).size(-1));
      case Work::ProductAndSum:
        return count < 3 ? 0 : 2.0 * static_cast<double>(at(1).numel() * at(2).size(-1));
      case Work::Convolution: {
        if (count < 2 || at(1).size(0) == 0) {
          return 0;
        }
        return 2.0 * convolved_numbers_ * static_cast<double>(at(1).numel() / at(1).size(0));
      }
      case Work::ConvolutionBackward: {
        // With respect to the input and to the weight, each as dear as the forward.
        if (count < 3 || at(2).size(0) == 0) {
          return 0;
        }
        return 4.0 * static_cast<double>(at(0).numel() * (at(2).numel() / at(2).size(0)));
      }
      case Work::Elementwise:
        return 0;
    }
    return 0;
  }

  const OperatorPlan& plan_;
  const c10::DispatchKey host_key_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const size_t argument_count_;
  const size_t first_argument_;
  c10::Device device_;
  c10::SmallVector<Operand, 6> operands_;
  // Of the containers among them.
  c10::SmallVector<Operand, 6> parts_;
  c10::SmallVector<int, 16> first_operand_;
  // Storages of the CPU tensors among the arguments: a result over one is a view of an argument.
  c10::SmallVector<c10::StorageImpl*, 4> host_storages_;
  bool sees_meta_ = false;
  bool returns_to_host_ = false;
  double bytes_ = 0;
  double convolved_numbers_ = 0;
};

// A kernel for one operator, with its plan.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  BoxedKernel(OperatorPlan plan, c10::DispatchKey host_key)
      : plan_(std::move(plan)), host_key_(host_key) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) {
    Call(plan_, op, host_key_, stack).run();
  }

 private:
  OperatorPlan plan_;
  c10::DispatchKey host_key_;
};

torch::CppFunction boxed_kernel(OperatorPlan plan, c10::DispatchKey host_key) {
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<BoxedKernel>(std::move(plan), host_key));
}

// For operators of other libraries, which may be loaded at any time.
void run_foreign(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK_NOT_IMPLEMENTED(
      schema.name().rfind("aten::", 0) != 0,
      "Could not run '", op.operator_name(), "' with arguments from the 'CUDA' backend. This "
      "operator has no kernel for CUDA, or none that virtual GPUs can run on the CPU.");
  static thread_local std::unordered_map<const c10::FunctionSchema*, OperatorPlan> plans;
  auto plan = plans.find(&schema);
  if (plan == plans.end()) {
    plan = plans.emplace(&schema, OperatorPlan(schema, {})).first;
  }
  Call(plan->second, op, c10::DispatchKey::CPU, stack).run();
}

// In a PyTorch built for CUDA each registration replaces a kernel, which it warns of.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

bool has_host_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// Kernels that serve every device and must not see twins: copies between two devices, of which
// each part comes back here, and the sizes of nested tensors, which stay on the CPU.
bool takes_any_device(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "copy_", "copy_sparse_to_sparse_", "_to_copy",
      "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"};
  return names.count(name) > 0;
}

// Runs the kernel of the host key on virtual tensors as they are.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(c10::DispatchKey host_key) : host_key_(host_key) {}

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet /*keys*/,
      torch::jit::Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(host_key_), stack);
  }

 private:
  c10::DispatchKey host_key_;
};

// What a card can do with sparse and nested tensors.
void install_container_operators(const OperatorTable& table) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& keys : container_keys()) {
    auto* library =
        new torch::Library(torch::Library::IMPL, "aten", keys.device, __FILE__, __LINE__);
    for (const auto& [name, facts] : table) {
      const auto& listed = facts.container_keys;
      const size_t dot = name.find('.');
      const auto op = dispatcher.findOp(
          {"aten::" + name.substr(0, dot),
           dot == std::string::npos ? std::string() : name.substr(dot + 1)});
      if (std::find(listed.begin(), listed.end(), keys.name) == listed.end() ||
          !op.has_value() || !op->hasKernelForDispatchKey(keys.host)) {
        continue;
      }
      if (takes_any_device(name)) {
        library->impl(
            name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(keys.host)));
        continue;
      }
      OperatorPlan plan(op->schema(), facts);
      plan.wrapper_name.replace(plan.wrapper_name.find("CUDA"), 4, keys.name);
      library->impl(name.c_str(), boxed_kernel(std::move(plan), keys.host));
    }
  }
}

// Composed of smaller operators here, but one call of a library on a card; or composed of kernels
// that are looked up by device behind the dispatcher's back.
bool is_kernel_of_its_own(const std::string& full_name) {
  return full_name == "convolution" || full_name == "convolution_overrideable" ||
      full_name == "mode.values";
}

} // namespace

int install_operators(const OperatorTable& table) {
  NoWarnings no_warnings;
  c10::WarningUtils::WarningHandlerGuard guard(&no_warnings);
  // Libraries deregister their kernels when they go; these stay until the process ends.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  const auto written_out = register_kernels(*library);
  int count = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op.has_value() || !op->hasSchema()) {
      continue;
    }
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    const std::string full_name = name.name.substr(6) + overload;
    const auto facts = table.find(full_name);
    const bool on_card = facts != table.end() && facts->second.has_cuda_kernel;
    if (written_out.count(full_name) > 0 || !(on_card || is_kernel_of_its_own(full_name))) {
      continue;
    }
    const auto host_kernel = cuda_only_kernels().find(full_name);
    const bool written_here = host_kernel != cuda_only_kernels().end();
    if (!has_host_kernel(*op) && !written_here) {
      // Where PyTorch is built for CUDA, its kernel must not get at memory of the host.
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
        library->impl(
            full_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_foreign>());
      }
      continue;
    }
    OperatorPlan plan(op->schema(), facts == table.end() ? OperatorFacts() : facts->second);
    if (written_here) {
      plan.host_kernel = host_kernel->second;
    }
    library->impl(full_name.c_str(), boxed_kernel(std::move(plan), c10::DispatchKey::CPU));
    ++count;
  }
  install_container_operators(table);
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run_foreign>());
  return count;
}

} // namespace anyrig::virtual_gpu
