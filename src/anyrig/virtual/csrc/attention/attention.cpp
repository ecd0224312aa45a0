// Attention: the operator that chooses the backend, and what all backends share.

#include "attention/attention.h"

#include "attention/attention_choice.h"
#include "random/generator.h"
#include "time/clock.h"
#include "time/records/operator_work.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>

#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

int64_t fused_choice(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool is_causal,
    std::optional<double> /*scale*/,
    bool enable_gqa) {
  const auto choice = choose_attention({query, key, value, mask, dropout, is_causal, enable_gqa});
  TORCH_CHECK(
      choice != sdp::SDPBackend::error,
      "No viable backend for scaled_dot_product_attention was found. "
      "This is likely due to turning off both the math kernel and the fused kernels.");
  return static_cast<int64_t>(choice);
}

const char* name_of(AttentionKernel kernel, bool backward) {
  switch (kernel) {
    case AttentionKernel::Flash:
      return backward ? "aten::_scaled_dot_product_flash_attention_backward"
                      : "aten::_scaled_dot_product_flash_attention";
    case AttentionKernel::Efficient:
      return backward ? "aten::_scaled_dot_product_efficient_attention_backward"
                      : "aten::_scaled_dot_product_efficient_attention";
    case AttentionKernel::Cudnn:
      return backward ? "aten::_scaled_dot_product_cudnn_attention_backward"
                      : "aten::_scaled_dot_product_cudnn_attention";
  }
  return "attention";
}

// `head_products` is the length of the products along the head that a score takes.
void charge(
    const at::Tensor& query,
    const AttentionWork& attention,
    bool backward,
    double head_products,
    std::initializer_list<at::Tensor> tensors) {
  auto& clock = Clock::get();
  if (!clock.charges()) {
    return;
  }
  const AttentionShape& shape = attention.shape;
  Work work(shape);
  work.precision = precision_of(query.scalar_type(), Family::Attention);
  work.element_bytes = static_cast<double>(query.element_size());
  work.flops = 2 * shape.batch * shape.heads * shape.queries * shape.keys * head_products;
  work.share = attention.share;
  work.attention.backward = backward;
  for (const auto& tensor : tensors) {
    work.bytes_read += tensor.defined() ? touched_bytes(tensor) : 0;
  }
  work.footprint_bytes = work.bytes_read;
  const RunningOperator running(name_of(shape.kernel, backward));
  clock.run(current_stream(query.device().index()), work);
}

} // namespace

void check_same_device(
    const char* name,
    std::initializer_list<std::pair<const char*, OptionalTensor>> arguments) {
  const std::string wrapper = std::string("wrapper_CUDA__") + name;
  std::optional<c10::Device> common;
  for (const auto& [argument, tensor] : arguments) {
    c10::impl::check_and_update_common_device(common, tensor, wrapper.c_str(), argument);
  }
}

double attention_scale(const at::Tensor& query, std::optional<double> scale) {
  return scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

void charge_forward(
    const at::Tensor& query,
    const AttentionWork& work,
    std::initializer_list<at::Tensor> tensors) {
  // Two matrix products: the scores, and their product with the values.
  charge(query, work, /*backward=*/false, work.head_size + work.value_head_size, tensors);
}

void charge_backward(
    const at::Tensor& query,
    const AttentionWork& work,
    std::initializer_list<at::Tensor> tensors) {
  // Five matrix products: the scores again, and the gradients of query, key, scores and value.
  charge(query, work, /*backward=*/true, 3 * work.head_size + 2 * work.value_head_size, tensors);
}

std::pair<uint64_t, uint64_t> reserve_random_numbers(const at::Tensor& query, uint64_t per_thread) {
  auto& generator = generator_of(std::nullopt, query.device().index());
  const std::lock_guard<std::mutex> guard(generator.mutex_);
  return generator.take(per_thread);
}

void register_attention_kernels(torch::Library& library, Names& names) {
  // scaled_dot_product_attention calls the stub; programs and other backends call the operator.
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&fused_choice);
  register_kernel(library, names, "_fused_sdp_choice", fused_choice);
  register_flash_attention(library, names);
  register_efficient_attention(library, names);
  register_cudnn_attention(library, names);
  register_multi_head_attention(library, names);
}

} // namespace anyrig::virtual_gpu
