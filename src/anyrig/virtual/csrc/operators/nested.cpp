// Nested tensors of layout strided: a buffer on the device, sizes and strides on the host.

#include "device/device.h"
#include "operators/kernels.h"
#include "operators/nested_attention.h"
#include "operators/nested_elementwise.h"
#include "operators/nested_shapes.h"
#include "operators/optional_tensor.h"
#include "time/clock.h"
#include "time/streams.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

namespace anyrig::virtual_gpu {
namespace {

// Runs PyTorch's CPU kernel on virtual nested tensors. Most such kernels also serve CUDA: they call
// operators on the buffers, which are on the device.
void run_host_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
}

// PyTorch's kernel calls the dense CPU kernel directly, without the dispatcher.
std::tuple<at::Tensor, at::Tensor, at::Tensor> nested_layer_norm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    double epsilon) {
  TORCH_CHECK(
      input.is_contiguous() && is_given(weight) && is_given(bias) && normalized_shape.size() == 1,
      "layer_norm of nested tensors requires contiguous tensors, a weight, a bias and one "
      "normalized dimension");
  const auto* impl = at::native::get_nested_tensor_impl(input);
  const auto [output, mean, deviation] = at::native_layer_norm(
      impl->get_buffer().view({-1, normalized_shape[0]}), normalized_shape, weight, bias, epsilon);
  return {
      at::native::wrap_buffer(output.reshape({-1}), impl->get_nested_sizes().clone()), mean,
      deviation};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> nested_layer_norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const at::Tensor& mean,
    const at::Tensor& deviation,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> wanted) {
  const auto* impl = at::native::get_nested_tensor_impl(input);
  const auto rows = [&](const at::Tensor& buffer) {
    return buffer.view({-1, normalized_shape[0]});
  };
  const auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
      rows(at::native::get_nested_tensor_impl(gradient)->get_buffer()), rows(impl->get_buffer()),
      normalized_shape, mean, deviation, weight, bias, wanted);
  return {
      wanted[0] ? at::native::wrap_buffer(of_input.reshape({-1}), impl->get_nested_sizes().clone())
                : at::Tensor(),
      of_weight, of_bias};
}

// PyTorch's generic code selects by a mask. In ShapeOnly, compute the selected count from the
// sizes, which are on the host.
at::Tensor nested_from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool joins_heads) {
  if (!shape_only()) {
    return at::native::nested_from_padded_generic(padded, sizes, joins_heads);
  }
  const auto count = sizes.prod(1).sum().item<int64_t>();
  const auto buffer = at::empty({count}, padded.options());
  if (Clock::get().charges()) {
    const auto bytes = static_cast<double>(buffer.nbytes());
    Clock::get().run(current_stream(padded.device().index()), memory_work(bytes, bytes));
  }
  return at::native::wrap_buffer(buffer, sizes);
}

// Returns whether only the CPU has a kernel for an operator.
bool is_cpu_only(const std::string& full_name) {
  return full_name == "sum.dim_IntList" || full_name == "_nested_sum_backward";
}

} // namespace

void register_nested_kernels(torch::Library& library, Names& names) {
  // CUDA composes these of other operators too, or has a kernel with the same result.
  register_kernel(library, names, "_nested_view_from_buffer", at::native::_nested_view_from_buffer);
  if (shape_only()) {
    register_nested_shapes(library, names);
  } else {
    register_kernel(
        library, names, "_nested_tensor_from_mask",
        at::native::NestedTensor_nested_tensor_from_mask);
    register_kernel(
        library, names, "_nested_tensor_from_mask_left_aligned",
        at::native::NestedTensor_nested_tensor_from_mask_left_aligned);
  }
  register_kernel(library, names, "_nested_from_padded", nested_from_padded);

  register_nested_elementwise();
  static auto* nested = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorCUDA, __FILE__, __LINE__);
  Names nested_names;
  register_nested_attention(*nested, nested_names);
  register_kernel(*nested, nested_names, "native_layer_norm", nested_layer_norm);
  register_kernel(*nested, nested_names, "native_layer_norm_backward", nested_layer_norm_backward);
  if (shape_only()) {
    register_shapes_of_nested(*nested, nested_names);
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    const bool on_host =
        op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU);
    if (!on_host || name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const std::string own_name = name.name.substr(6) + overload;
    if (nested_names.count(own_name) == 0 && !is_cpu_only(own_name)) {
      nested->impl(own_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_host_kernel>());
    }
  }
}

} // namespace anyrig::virtual_gpu
