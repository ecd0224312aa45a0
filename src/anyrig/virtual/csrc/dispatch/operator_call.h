// One call of an operator on a virtual device, step by step: call.cpp runs the steps.
#pragma once

#include "device/device.h"
#include "dispatch/known_call.h"
#include "dispatch/operand.h"
#include "dispatch/operator_plan.h"
#include "dispatch/result_layout.h"
#include "dispatch/shape_only.h"
#include "temporaries/temporaries.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// Replaces its arguments by twins, runs the CPU or Meta kernel, and turns its results into virtual
// tensors.
class OperatorCall {
 public:
  OperatorCall(
      const OperatorPlan& plan,
      const c10::OperatorHandle& op,
      c10::DispatchKey host_key,
      torch::jit::Stack* stack)
      : plan_(plan),
        host_key_(host_key),
        op_(op),
        stack_(stack),
        argument_count_(plan.arguments.size()),
        first_argument_(stack->size() - argument_count_),
        device_(kDeviceType, static_cast<c10::DeviceIndex>(current_device())),
        first_operand_(argument_count_, -1) {}

  void run();

 private:
  c10::IValue& argument(size_t i) { return (*stack_)[first_argument_ + i]; }

  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack_->data() + first_argument_, argument_count_);
  }

  // Whether the first argument is a dense virtual tensor, or a list that begins with one. Makes its
  // device the device of the call.
  bool begins_with_dense_tensor();
  bool takes_device_of(const at::Tensor& tensor);

  // Move a zero-dimensional value, and indices, to the device of the tensor that is written to, as
  // PyTorch's `fill_` and `_index_put_impl_` do. Return whether anything has moved.
  bool move_value();
  bool move_indices();

  // Gives a TorchScript list of optional tensors the list type that IValue::isOptionalTensorList
  // recognises.
  static void retype(c10::IValue& value);

  // Autograd saves running statistics too, but its backward reads them only where none are written.
  void note_writes();
  void provide_generators();
  void charge();

  // call_operands.cpp

  // Returns whether any two tensors among the arguments are on different devices.
  bool mixes_devices();

  // Replaces the tensors in one argument by their twins.
  void replace_by_twins(size_t i);
  at::Tensor twin(at::Tensor tensor, size_t i);
  at::Tensor container_twin(const at::Tensor& container, size_t i);
  void replace_device(c10::IValue& value);
  void update_owners();
  void keep_twins();

  // call_kernel.cpp
  void run_kernel();
  void run_kernel_of(c10::DispatchKey key);
  void call_kernel_of(c10::DispatchKey key);
  void call_kernel(c10::DispatchKeySet keys);
  ResultLayout result_layout();

  // Runs the CPU kernel on known values, which determine the sizes of the results. Returns false if
  // it fails.
  bool run_on_values();
  void run_meta_kernel();

  // call_results.cpp
  void wrap_results();
  std::vector<at::Tensor> results(const std::vector<at::Tensor>& tensors);

  // Returns the tensor that the caller gets for a tensor returned by the kernel.
  at::Tensor result(at::Tensor tensor);

  // ShapeOnly: computes known results and forgets the values of all other tensors written to.
  void update_known_values();

  const OperatorPlan& plan_;
  const c10::DispatchKey host_key_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const size_t argument_count_;
  const size_t first_argument_;
  c10::Device device_;
  c10::SmallVector<Operand, 6> operands_;
  // The parts of the containers among `operands_`.
  c10::SmallVector<Operand, 6> parts_;
  c10::SmallVector<int, 16> first_operand_;
  // The storages of the CPU tensors among the arguments. A result with such a storage is a view of
  // an argument.
  c10::SmallVector<c10::StorageImpl*, 4> host_storages_;
  // ShapeOnly: the call on known values, if all are known.
  std::optional<KnownCall> known_;
  std::optional<MaskCounts> mask_counts_;
  std::optional<TemporaryMemory> temporaries_;
  WhyUnknown why_unknown_ = WhyUnknown::NotComputed;
  bool has_run_on_values_ = false;
  bool fills_by_mask_ = false;
  bool sees_meta_ = false;
  bool returns_to_host_ = false;
  Description description_;
  double result_bytes_ = 0;
};

inline c10::StorageImpl* storage_impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

} // namespace anyrig::virtual_gpu
