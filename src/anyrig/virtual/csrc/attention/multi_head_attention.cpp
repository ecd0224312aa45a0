// The fast paths of nn.MultiheadAttention and nn.TransformerEncoder for inference, composed of
// other operators, as in CUDA: aten/src/ATen/native/transformers/cuda/attention.cu.

#include "attention/attention.h"

#include "attention/attention_choice.h"

#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace anyrig::virtual_gpu {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

void check_shapes(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    int64_t embedding,
    int64_t heads,
    const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias,
    const OptionalTensor& mask) {
  TORCH_CHECK(
      !mask.has_value() || !query.is_nested(), "NestedTensor with mask is not supported yet");
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(
      query.is_nested() || query.size(2) == embedding, "passed-in embed_dim ", embedding,
      " didn't match last dim of query ", query.size(2));
  TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
  TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
  TORCH_CHECK(
      query.is_nested() || key.is_nested() || value.is_nested() ||
          (query.sizes() == key.sizes() && key.sizes() == value.sizes()),
      "expected `query`/`key`/`value` shapes to match");
  TORCH_CHECK(
      qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(), "-D tensor");
  TORCH_CHECK(
      embedding * 3 == qkv_weight.size(0), "expected `qkv_weight` first dim to be 3x embed_dim");
  TORCH_CHECK(embedding == qkv_weight.size(1), "expected `qkv_weight` second dim to be embed_Dim");
  TORCH_CHECK(qkv_bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv_bias.dim(), "-D tensor");
  TORCH_CHECK(
      qkv_bias.size(0) == 3 * embedding,
      "expected `qkv_bias` first dim and first dim of query to be equal");
  TORCH_CHECK(embedding % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
}

at::Tensor split_heads(const at::Tensor& tensor, int64_t heads, int64_t head_size) {
  return tensor.view({tensor.size(0), -1, heads, head_size}).transpose(1, 2);
}

// Returns whether a fused operator would accept the call, judged by the shapes before the
// projection.
bool has_fused_operator(const at::Tensor& query, int64_t heads, int64_t head_size) {
  const auto split = split_heads(query, heads, head_size);
  const auto choice = choose_attention({split, split, split, std::nullopt, 0.0, false, false});
  return choice == sdp::SDPBackend::flash_attention ||
      choice == sdp::SDPBackend::efficient_attention || choice == sdp::SDPBackend::cudnn_attention;
}

TwoTensors native_multi_head_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    int64_t embedding,
    int64_t heads,
    const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias,
    const at::Tensor& projection_weight,
    const at::Tensor& projection_bias,
    const OptionalTensor& mask,
    bool need_weights,
    bool average_weights,
    std::optional<int64_t> mask_type) {
  check_shapes(query, key, value, embedding, heads, qkv_weight, qkv_bias, mask);
  const int64_t head_size = embedding / heads;
  const bool self_attention = query.is_same(key) && key.is_same(value);
  if (self_attention && head_size % 8 == 0 && !need_weights && !mask.has_value() &&
      has_no_single_tokens(query) && has_fused_operator(query, heads, head_size)) {
    const auto parts = at::linear(query, qkv_weight, qkv_bias).chunk(3, -1);
    const auto attended = at::scaled_dot_product_attention(
        split_heads(parts[0], heads, head_size), split_heads(parts[1], heads, head_size),
        split_heads(parts[2], heads, head_size));
    const auto joined = attended.transpose(1, 2).reshape({query.size(0), -1, embedding});
    return {at::linear(joined, projection_weight, projection_bias), at::Tensor()};
  }
  auto qkv = at::native::qkv_projection(query, key, value, embedding, qkv_weight);
  if (!qkv.is_nested() && qkv.numel() == 0) {
    return {query.is_nested() ? at::Tensor() : at::empty_like(query), at::Tensor()};
  }
  auto [q, k, v] = at::_transform_bias_rescale_qkv(qkv, qkv_bias, heads);
  qkv = at::Tensor();
  auto weights = at::native::bmm_nt(q, k);
  weights = at::native::masked_softmax(weights, mask, query, mask_type);
  const auto context = at::native::bmm_nn(q, weights, v); // overwrites the query
  if (!need_weights) {
    weights = at::Tensor();
  }
  auto projected =
      at::native::transform0213_gemm_nt_bias(context, projection_weight, projection_bias, query);
  if (need_weights && average_weights) {
    weights = weights.sum(1);
    weights /= heads;
  }
  return {projected, weights};
}

} // namespace

void register_multi_head_attention(torch::Library& library, Names& names) {
  register_kernel(library, names, "_native_multi_head_attention", native_multi_head_attention);
  // PyTorch uses its CPU code for CUDA, too.
  register_kernel(
      library, names, "_transformer_encoder_layer_fwd",
      at::native::transformer_encoder_layer_forward);
}

} // namespace anyrig::virtual_gpu
