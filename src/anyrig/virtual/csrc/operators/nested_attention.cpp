// Attention of nested tensors of layout strided. As on CUDA, the sequences are packed into one
// buffer for flash, memory-efficient or cuDNN attention, and the result is unpacked. Queries, keys
// and values are (batch, heads, tokens, head size). Batches and heads of size one broadcast, and
// one of the three may be dense.

#include "operators/nested_attention.h"

#include "attention/cudnn_attention.h"
#include "attention/flash_attention.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// The broadcast sizes of all operands.
struct Extents {
  int64_t batch = 1;
  int64_t heads = 1;
};

// Sequences of (heads, tokens, head size), packed to (total tokens, heads, head size).
struct Packed {
  at::Tensor tensor;
  at::Tensor sizes;  // (tokens, heads, head size) of each sequence; on the host
  at::Tensor starts; // the first token of each sequence; int32, on the device
  int64_t longest;
};

Extents extents_of(std::initializer_list<at::Tensor> operands) {
  Extents result;
  for (const at::Tensor& operand : operands) {
    result.batch = std::max(result.batch, operand.size(0));
    result.heads = std::max(result.heads, operand.size(1));
  }
  return result;
}

// Packs (sequences, tokens, heads, head size), where every sequence has the same length.
at::Tensor pack_equal(const at::Tensor& tokens_first, Extents extents) {
  const int64_t tokens = tokens_first.size(1);
  const int64_t numbers = tokens_first.size(3);
  return tokens_first.expand({extents.batch, tokens, extents.heads, numbers})
      .reshape({extents.batch * tokens, extents.heads, numbers});
}

at::Tensor equal_sizes(const at::Tensor& packed, Extents extents) {
  return at::tensor(
             {packed.size(0) / extents.batch, extents.heads, packed.size(2)},
             at::TensorOptions().dtype(at::kLong))
      .repeat({extents.batch, 1});
}

Packed finish(const at::Tensor& packed, const at::Tensor& sizes) {
  const auto lengths = sizes.select(1, 0);
  const auto starts = at::zeros({lengths.numel() + 1}, at::kInt);
  starts.narrow(0, 1, lengths.numel()).copy_(lengths.cumsum(0));
  return {packed, sizes, starts.to(packed.device()), lengths.max().item<int64_t>()};
}

Packed pack(const at::Tensor& operand, Extents extents) {
  if (!operand.is_nested()) {
    const auto packed = pack_equal(operand.transpose(1, 2), extents);
    return finish(packed, equal_sizes(packed, extents));
  }
  auto tokens_first = operand.transpose(1, 2);
  if (!tokens_first.is_contiguous()) {
    tokens_first = tokens_first.contiguous();
  }
  const auto* impl = at::native::get_nested_tensor_impl(tokens_first);
  auto sizes = impl->get_nested_sizes();
  const auto own_heads = sizes[0][1].item<int64_t>();
  const auto numbers = sizes[0][2].item<int64_t>();
  const auto buffer = impl->get_buffer().view({-1, own_heads, numbers});
  if (sizes.size(0) != extents.batch) {
    const auto packed = pack_equal(buffer.unsqueeze(0), extents);
    return finish(packed, equal_sizes(packed, extents));
  }
  if (own_heads != extents.heads) {
    sizes = sizes.clone();
    sizes.select(1, 1).fill_(extents.heads);
  }
  return finish(buffer.expand({-1, extents.heads, numbers}), sizes);
}

// The operands of the attention kernel.
struct PackedOperands {
  Extents extents;
  Packed query;
  Packed key;
  Packed value;
};

PackedOperands pack_operands(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value) {
  const Extents extents = extents_of({query, key, value});
  return {extents, pack(query, extents), pack(key, extents), pack(value, extents)};
}

// Unpacks to sequences of the query's lengths and of the head size of `packed`.
at::Tensor unpack(const at::Tensor& packed, const Packed& like) {
  auto sizes = like.sizes.clone();
  sizes.select(1, 2).fill_(packed.size(-1));
  return at::native::wrap_buffer(packed.reshape({-1}), sizes).transpose(1, 2);
}

ProductOutputs nested_flash_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  const auto [extents, q, k, v] = pack_operands(query, key, value);
  const auto [output, logsumexp, rng_state, unused, debug_mask] = flash_forward(
      {q.tensor,
       k.tensor,
       v.tensor,
       {q.starts, k.starts, {}, {}, q.longest, k.longest},
       dropout,
       is_causal,
       return_debug_mask,
       scale});
  return {unpack(output, q), logsumexp, q.starts, k.starts,  q.longest,
          k.longest,         rng_state, unused,   debug_mask};
}

// Needs no broadcasting: with gradients, flash attention is not chosen for broadcast operands.
FlashGradients nested_flash_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& query_starts,
    const at::Tensor& key_starts,
    int64_t longest_query,
    int64_t longest_key,
    double dropout,
    bool is_causal,
    const at::Tensor& rng_state,
    const at::Tensor& /*unused*/,
    std::optional<double> scale) {
  if (!gradient.defined()) {
    return {};
  }
  const auto [extents, q, k, v] = pack_operands(query, key, value);
  const auto [of_query, of_key, of_value] = flash_backward(
      {q.tensor, k.tensor, v.tensor,
       Sequences{query_starts, key_starts, {}, {}, longest_query, longest_key}, dropout, is_causal,
       /*return_debug_mask=*/false, scale},
      pack(gradient, extents).tensor, pack(output, extents).tensor, logsumexp, rng_state);
  return {unpack(of_query, q), unpack(of_key, k), unpack(of_value, v)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> nested_efficient_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& /*bias*/, // ignored on CUDA too
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  const auto [extents, q, k, v] = pack_operands(query, key, value);
  const auto mask_type = static_cast<int64_t>(is_causal); // CausalFromTopLeft is 1
  const auto [output, logsumexp, seed, offset, longest_query, longest_key] =
      at::_efficient_attention_forward(
          q.tensor.unsqueeze(0), k.tensor.unsqueeze(0), v.tensor.unsqueeze(0), std::nullopt,
          q.starts, k.starts, q.longest, k.longest, dropout, mask_type, compute_logsumexp, scale);
  return {unpack(output.squeeze(0), q), logsumexp, seed, offset};
}

PackedCall packed_call(
    const PackedOperands& operands,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  const auto& [extents, q, k, v] = operands;
  return {
      q.tensor, k.tensor,  v.tensor, Sequences{q.starts, k.starts, {}, {}, q.longest, k.longest},
      dropout,  is_causal, scale};
}

ProductOutputs nested_cudnn_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& /*bias*/, // not supported with nested operands
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    bool /*return_debug_mask*/,
    std::optional<double> scale) {
  const auto operands = pack_operands(query, key, value);
  auto results =
      packed_cudnn_forward(packed_call(operands, dropout, is_causal, scale), compute_logsumexp);
  std::get<0>(results) = unpack(std::get<0>(results), operands.query);
  return results;
}

FlashGradients nested_cudnn_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset,
    const at::Tensor& /*bias*/,
    const at::Tensor& /*query_starts*/,
    const at::Tensor& /*key_starts*/,
    int64_t /*longest_query*/,
    int64_t /*longest_key*/,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  if (!gradient.defined()) {
    return {};
  }
  const auto operands = pack_operands(query, key, value);
  const auto [of_query, of_key, of_value] = packed_cudnn_backward(
      packed_call(operands, dropout, is_causal, scale), pack(gradient, operands.extents).tensor,
      pack(output, operands.extents).tensor, logsumexp, seed, offset);
  return {
      unpack(of_query, operands.query), unpack(of_key, operands.key),
      unpack(of_value, operands.value)};
}

// CUDA chooses for dense and nested tensors in the same function.
int64_t nested_choice(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  return at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), query, key, value, mask, dropout, is_causal,
      scale, enable_gqa);
}

} // namespace

void register_nested_attention(torch::Library& library, Names& names) {
  register_kernel(library, names, "_scaled_dot_product_flash_attention", nested_flash_forward);
  register_kernel(
      library, names, "_scaled_dot_product_flash_attention_backward", nested_flash_backward);
  register_kernel(
      library, names, "_scaled_dot_product_efficient_attention", nested_efficient_forward);
  register_kernel(library, names, "_scaled_dot_product_cudnn_attention", nested_cudnn_forward);
  register_kernel(
      library, names, "_scaled_dot_product_cudnn_attention_backward", nested_cudnn_backward);
  register_kernel(library, names, "_fused_sdp_choice", nested_choice);
  register_multi_head_attention(library, names);
}

} // namespace anyrig::virtual_gpu
