// Nested tensors of layout strided: a buffer on the device, sizes and strides on the host.

#include "attention/flash_attention.h"
#include "operators/nested_elementwise.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/zeros.h>

namespace anyrig::virtual_gpu {
namespace {

// PyTorch's kernels of nested tensors for the CPU are made of operators on buffers, and most are
// its kernels for a card too. The operators find the buffers on the device.
void run_host_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
}

// A nested tensor of sequences (heads, tokens, numbers), packed to (all tokens, heads, numbers).
struct Packed {
  at::Tensor tensor;
  at::Tensor sizes;  // of each sequence, (tokens, heads, numbers); on the host
  at::Tensor starts; // int32, on the device
  int64_t longest;
};

Packed pack(const at::Tensor& nested) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      nested.is_nested(),
      "virtual GPUs do not compute attention between nested tensors and others");
  auto tokens_first = nested.transpose(1, 2);
  if (!tokens_first.is_contiguous()) {
    tokens_first = tokens_first.contiguous();
  }
  const auto* impl = at::native::get_nested_tensor_impl(tokens_first);
  const auto& sizes = impl->get_nested_sizes();
  const auto lengths = sizes.select(1, 0);
  const auto starts = at::zeros({lengths.numel() + 1}, at::kInt);
  starts.narrow(0, 1, lengths.numel()).copy_(lengths.cumsum(0));
  const auto heads = sizes[0][1].item<int64_t>();
  const auto numbers = sizes[0][2].item<int64_t>();
  return {
      impl->get_buffer().view({-1, heads, numbers}), sizes, starts.to(nested.device()),
      lengths.max().item<int64_t>()};
}

// The opposite, for an output with the query's sequences and the value's heads.
at::Tensor unpack(const at::Tensor& output, const Packed& query) {
  auto sizes = query.sizes.clone();
  sizes.select(1, 2).fill_(output.size(-1));
  return at::native::wrap_buffer(output.reshape({-1}), sizes).transpose(1, 2);
}

ProductOutputs nested_flash_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  const Packed q = pack(query);
  const Packed k = pack(key);
  const Packed v = pack(value);
  const auto [output, logsumexp, rng_state, unused, debug_mask] = flash_forward(
      {q.tensor, k.tensor, v.tensor, {q.starts, k.starts, {}, {}, q.longest, k.longest}, dropout,
       is_causal, return_debug_mask, scale});
  return {unpack(output, q), logsumexp, q.starts, k.starts, q.longest, k.longest, rng_state, unused,
          debug_mask};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> nested_efficient_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  const Packed q = pack(query);
  const Packed k = pack(key);
  const Packed v = pack(value);
  const auto mask_type = static_cast<int64_t>(is_causal); // CausalFromTopLeft is 1
  const auto [output, logsumexp, seed, offset, longest_query, longest_key] =
      at::_efficient_attention_forward(
          q.tensor.unsqueeze(0), k.tensor.unsqueeze(0), v.tensor.unsqueeze(0), bias, q.starts,
          k.starts, q.longest, k.longest, dropout, mask_type, compute_logsumexp, scale);
  return {unpack(output.squeeze(0), q), logsumexp, seed, offset};
}

// The kernel for the CPU calls the CPU's dense kernel by the device of its operands.
std::tuple<at::Tensor, at::Tensor, at::Tensor> nested_layer_norm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    double epsilon) {
  TORCH_CHECK(
      input.is_contiguous() && is_given(weight) && is_given(bias) && normalized_shape.size() == 1,
      "layer_norm of nested tensors needs contiguous ones, a weight, a bias and one normalized "
      "dimension");
  const auto* impl = at::native::get_nested_tensor_impl(input);
  const auto [output, mean, deviation] = at::native_layer_norm(
      impl->get_buffer().view({-1, normalized_shape[0]}), normalized_shape, weight, bias, epsilon);
  return {
      at::native::wrap_buffer(output.reshape({-1}), impl->get_nested_sizes().clone()), mean,
      deviation};
}

} // namespace

void register_nested_kernels(torch::Library& library, Names& names) {
  // Made of other operators on a card as well, or a kernel whose result these give too.
  register_kernel(library, names, "_nested_view_from_buffer", at::native::_nested_view_from_buffer);
  register_kernel(
      library, names, "_nested_tensor_from_mask", at::native::NestedTensor_nested_tensor_from_mask);
  register_kernel(
      library, names, "_nested_tensor_from_mask_left_aligned",
      at::native::NestedTensor_nested_tensor_from_mask_left_aligned);
  register_kernel(library, names, "_nested_from_padded", at::native::nested_from_padded_generic);

  register_nested_elementwise();
  static auto* nested = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorCUDA, __FILE__, __LINE__);
  Names nested_names;
  register_kernel(
      *nested, nested_names, "_scaled_dot_product_flash_attention", nested_flash_forward);
  register_kernel(
      *nested, nested_names, "_scaled_dot_product_efficient_attention", nested_efficient_forward);
  register_kernel(*nested, nested_names, "native_layer_norm", nested_layer_norm);
  register_multi_head_attention(*nested, nested_names);
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
    if (nested_names.count(own_name) == 0) {
      nested->impl(
          own_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_host_kernel>());
    }
  }
}

} // namespace anyrig::virtual_gpu
