#include "dispatch/device_check.h"

#include "device/device.h"
#include "dispatch/each_tensor.h"
#include "temporaries/selected.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>

#include <array>
#include <optional>

namespace anyrig::virtual_gpu {
namespace {

bool is_host_scalar(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.dim() == 0;
}

void check_as_wrapper(
    const OperatorPlan& plan,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> common;
  for (const int i : plan.check_order) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      c10::impl::check_and_update_common_device(
          common, tensor, plan.wrapper_name.c_str(), schema.arguments()[i].name().c_str());
    });
  }
}

void check_as_iterator(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> common;
  for (const int i : plan.check_order) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!common.has_value() && tensor.defined() && !tensor.is_cpu()) {
        common = tensor.device();
      }
    });
  }
  const bool moves_scalars = plan.name == "aten::where";
  int scalars = 0;
  for (const int i : plan.check_order) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      const bool may_differ = !plan.arguments[i].is_written && is_host_scalar(tensor);
      scalars += may_differ && common.has_value() && !moves_scalars ? 1 : 0;
      TORCH_CHECK(scalars <= 1, "Trying to pass too many CPU scalars to non-CPU kernel!");
      TORCH_CHECK(
          !tensor.defined() || !common.has_value() || tensor.device() == *common || may_differ,
          "Expected all tensors to be on the same device, but found at least two devices, ",
          *common, " and ", tensor.device(), "!");
    });
  }
}

// resize_out of a structured kernel that is not made of a TensorIterator.
void check_output(const OperatorPlan& plan, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> common;
  for (const bool is_written : {false, true}) {
    for (const int i : plan.check_order) {
      if (plan.arguments[i].is_written != is_written) {
        continue;
      }
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined()) {
          return;
        }
        common = common.value_or(tensor.device());
        TORCH_CHECK(
            !is_written || tensor.device() == *common, "Expected out tensor to have device ",
            *common, ", but got ", tensor.device(), " instead");
      });
    }
  }
  check_as_iterator(plan, arguments);
}

// masked_fill__cuda of aten/src/ATen/native/cuda/Indexing.cu.
void check_filled_mask(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& mask = arguments[1].toTensor();
  TORCH_CHECK(
      !arguments[2].isTensor() || !self.is_cpu(),
      "masked_fill_: Expected inputs to be on same device");
  TORCH_CHECK(
      self.device() == mask.device(),
      "expected self and mask to be on the same device, but got mask on ", mask.device(),
      " and self on ", self.device());
}

// TensorIterator accepts one CPU scalar, but addcmul_cuda_kernel accepts it only as tensor2.
void check_addcmul(c10::ArrayRef<c10::IValue> arguments) {
  constexpr std::array<const char*, 3> kNames = {"self", "tensor1", "tensor2"};
  bool on_gpu = false;
  std::optional<size_t> scalar;
  for (size_t i = 0; i < kNames.size(); ++i) {
    const bool is_cpu = arguments[i].toTensor().is_cpu();
    on_gpu |= !is_cpu;
    scalar = is_cpu ? i : scalar;
  }
  if (!on_gpu || !scalar.has_value()) {
    return;
  }
  TORCH_CHECK(
      *scalar == 2, "CPU Scalar support for ", kNames[*scalar],
      " argument is not supported when calling addcmul on CUDA tensors.",
      *scalar == 1 ? " However, CPU Scalar support for tensor2 is supported, please swap your "
                     "tensor1 and tensor2 terms."
                   : "");
}

// check_indices_on_cpu_or_selfdevice of aten/src/ATen/native/TensorAdvancedIndexing.cpp.
void check_read_indices(c10::ArrayRef<c10::IValue> arguments) {
  const c10::Device device = arguments[0].toTensor().device();
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    TORCH_CHECK(
        !index.defined() || index.device() == device || index.is_cpu(),
        "indices should be either on ", at::kCPU, " or on the same device as the indexed tensor (",
        device, ")");
  });
}

// _index_put_impl_ of the same file checks the values only: make_info moves the indices.
void check_put_values(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& values = arguments[2].toTensor();
  if (self.device() == values.device() || is_host_scalar(values) || puts_by_one_mask(arguments)) {
    return;
  }
  const bool sorts = arguments[3].toBool() || at::globalContext().deterministicAlgorithms();
  TORCH_CHECK(
      self.is_cpu() || !sorts, "expected device ", self.device(), " but got device ",
      values.device(), " for value tensor");
  const bool is_written_on_host = self.is_cpu();
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ",
      is_written_on_host ? values.device() : self.device(), " and ",
      is_written_on_host ? self.device() : values.device(), "!");
}

// Compares like TensorOptions::type_equal, which would compute a dispatch key each time.
bool same_type(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.layout() == b.layout() &&
      a.device().type() == b.device().type();
}

} // namespace

// check_input_same_type_as_parameters of aten/src/ATen/native/Convolution.cpp.
void check_types(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  TORCH_CHECK(
      same_type(input, weight), "Input type (", input.toString(), ") and weight type (",
      weight.toString(), ") should be the same");
  if (!arguments[2].isTensor() || !arguments[2].toTensor().defined()) {
    return;
  }
  const at::Tensor& bias = arguments[2].toTensor();
  TORCH_CHECK(
      same_type(input, bias), "Input type (", input.toString(), ") and bias type (",
      bias.toString(), ") should be the same");
}

void check_devices(
    const OperatorPlan& plan,
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  switch (plan.check) {
    case DeviceCheck::Wrapper:
    case DeviceCheck::Convolution:
      return check_as_wrapper(plan, schema, arguments);
    case DeviceCheck::Iterator:
      return check_as_iterator(plan, arguments);
    case DeviceCheck::Output:
      return check_output(plan, arguments);
    case DeviceCheck::Mask:
      return check_filled_mask(arguments);
    case DeviceCheck::Addcmul:
      check_as_iterator(plan, arguments);
      return check_addcmul(arguments);
    case DeviceCheck::Indices:
      return check_read_indices(arguments);
    case DeviceCheck::WrittenIndices:
      return check_put_values(arguments);
    case DeviceCheck::Foreach:
    case DeviceCheck::Nothing:
      return;
  }
}

} // namespace anyrig::virtual_gpu
