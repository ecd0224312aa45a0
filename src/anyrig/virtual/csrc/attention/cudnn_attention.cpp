// cuDNN's attention. Tensors are (batch, heads, tokens, numbers of a head). Outputs:
// attention.cu in aten/src/ATen/native/transformers/cuda and aten/src/ATen/native/cudnn/MHA.cpp.
// The workspace of cuDNN's plans is not counted: its size is known to cuDNN alone.

#include "attention/attention.h"
#include "attention/cudnn_attention.h"
#include "device/device.h"
#include "dispatch/twin.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace anyrig::virtual_gpu {
namespace {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// A tensor of `sizes` with its dimensions in memory in the query's order; those it repeats, with
// stride 0, come outermost.
at::Tensor empty_in_order_of(const at::Tensor& query, at::IntArrayRef sizes) {
  if (query.sizes() == sizes) {
    return at::empty_like(query);
  }
  std::vector<int64_t> inner_to_outer(sizes.size());
  std::iota(inner_to_outer.begin(), inner_to_outer.end(), 0);
  const auto stride = [&query](int64_t dimension) {
    const int64_t value = query.stride(dimension);
    return value == 0 ? std::numeric_limits<int64_t>::max() : value;
  };
  std::stable_sort(
      inner_to_outer.begin(), inner_to_outer.end(),
      [&stride](int64_t a, int64_t b) { return stride(a) < stride(b); });
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (const int64_t dimension : inner_to_outer) {
    strides[dimension] = step;
    step *= sizes[dimension];
  }
  return at::empty_strided(sizes, strides, query.options());
}

void refuse_paged(const OptionalTensor& used_keys_or_pages) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_given(used_keys_or_pages),
      "virtual GPUs do not compute cuDNN's attention of keys in pages; "
      "torch.backends.cuda.enable_cudnn_sdp(False) makes programs choose another one");
}

void refuse_bias_of_packed(const OptionalTensor& bias) {
  TORCH_CHECK(!is_given(bias), "attn_bias not yet supported with cuDNN Attention and NestedTensor");
}

Recipe recipe_of(
    const at::Tensor& query,
    const OptionalTensor& bias,
    bool is_causal,
    std::optional<double> scale) {
  Recipe recipe{attention_scale(query, scale), {}, {}, {}, {}};
  if (is_causal) {
    recipe.band.right = 0;
  }
  if (is_given(bias)) {
    const auto twin = twin_of(*bias);
    recipe.bias = twin.dim() == 3 ? twin.unsqueeze(1) : twin;
  }
  return recipe;
}

AttentionWork work_of(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool is_causal) {
  return {
      static_cast<double>(query.size(0) * query.size(1)) *
          static_cast<double>(query.size(2) * key.size(2)),
      is_causal ? 0.5 : 1, static_cast<double>(query.size(3)),
      static_cast<double>(value.size(3))};
}

LogsumexpOf packed_logsumexp(const at::Tensor& logsumexp) {
  return [twin = twin_of(logsumexp)](const Sequence& sequence) {
    return twin.narrow(0, sequence.start, sequence.queries).squeeze(-1).t().unsqueeze(0);
  };
}

// 2.14 added arguments that go with packed sequences.
template <class... Newer>
ProductOutputs cudnn_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    const OptionalTensor& query_starts,
    const OptionalTensor& key_starts,
    int64_t longest_query,
    int64_t longest_key,
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    bool /*return_debug_mask*/,
    std::optional<double> scale,
    Newer... newer) {
  check_same_device(
      "_cudnn_attention_forward",
      {{"query", query}, {"key", key}, {"value", value}, {"attn_bias", bias},
       {"cum_seq_q", query_starts}, {"cum_seq_k", key_starts}});
  (refuse_paged(newer), ...);
  if (is_given(query_starts)) {
    refuse_bias_of_packed(bias);
    return packed_cudnn_forward(
        {query, key, value,
         Sequences{query_starts, key_starts, {}, {}, longest_query, longest_key}, dropout,
         is_causal, scale},
        compute_logsumexp);
  }
  CurrentDevice guard(query.device().index());
  const int64_t batch = query.size(0);
  const int64_t heads = query.size(1);
  // Written only with dropout.
  const auto seed = at::empty({}, query.options().dtype(at::kLong));
  const auto offset = at::empty({}, query.options().dtype(at::kLong));
  Dropout drop{dropout};
  if (dropout != 0) {
    std::tie(drop.seed, drop.offset) = take_dropout(
        query,
        static_cast<uint64_t>(batch * heads * longest_query) * static_cast<uint64_t>(longest_key));
  }
  const auto output = empty_in_order_of(query, {batch, heads, longest_query, value.size(3)});
  at::Tensor logsumexp;
  if (compute_logsumexp) {
    logsumexp = at::empty({batch, heads, longest_query}, query.options().dtype(at::kFloat));
  }
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    Recipe recipe = recipe_of(query, bias, is_causal, scale);
    recipe.dropout = drop;
    if (dropout != 0) {
      twin_of(seed).fill_(static_cast<int64_t>(drop.seed));
      twin_of(offset).fill_(static_cast<int64_t>(drop.offset));
    }
    const auto result = attend(twin_of(query), twin_of(key), twin_of(value), recipe);
    twin_of(output).copy_(result.output);
    if (compute_logsumexp) {
      twin_of(logsumexp).copy_(result.logsumexp);
    }
  }
  charge_forward(
      query, work_of(query, key, value, is_causal), {query, key, value, output, logsumexp});
  return {
      output, logsumexp, at::Tensor(), at::Tensor(), longest_query, longest_key, seed, offset,
      at::Tensor()};
}

ThreeTensors cudnn_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset,
    const at::Tensor& bias,
    const at::Tensor& query_starts,
    const at::Tensor& key_starts,
    int64_t longest_query,
    int64_t longest_key,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  if (!gradient.defined()) {
    return {};
  }
  if (query_starts.defined()) {
    refuse_bias_of_packed(bias);
    return packed_cudnn_backward(
        {query, key, value,
         Sequences{query_starts, key_starts, {}, {}, longest_query, longest_key}, dropout,
         is_causal, scale},
        gradient, output, logsumexp, seed, offset);
  }
  CurrentDevice guard(query.device().index());
  const auto of_query = at::empty_like(query);
  const auto of_key = at::empty_like(key);
  const auto of_value = at::empty_like(value);
  at::Tensor laid_out = gradient;
  if (gradient.strides() != output.strides()) {
    laid_out = at::empty_like(output); // cuDNN wants both in one layout
    laid_out.copy_(gradient);
  }
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    Recipe recipe = recipe_of(query, bias, is_causal, scale);
    if (dropout != 0) {
      recipe.dropout = {
          dropout, static_cast<uint64_t>(twin_of(seed).item<int64_t>()),
          static_cast<uint64_t>(twin_of(offset).item<int64_t>())};
    }
    const auto result = attend_backward(
        twin_of(laid_out), twin_of(query), twin_of(key), twin_of(value),
        {twin_of(output), twin_of(logsumexp)}, recipe, /*bias_gradient=*/false);
    twin_of(of_query).copy_(result.query);
    twin_of(of_key).copy_(result.key);
    twin_of(of_value).copy_(result.value);
  }
  charge_backward(
      query, work_of(query, key, value, is_causal),
      {gradient, query, key, value, output, logsumexp, of_query, of_key, of_value});
  return {of_query, of_key, of_value};
}

ProductOutputs product_cudnn_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  check_same_device(
      "_scaled_dot_product_cudnn_attention",
      {{"query", query}, {"key", key}, {"value", value}, {"attn_bias", bias}});
  return cudnn_forward(
      query, key, value, bias, std::nullopt, std::nullopt, query.size(2), key.size(2),
      compute_logsumexp, dropout, is_causal, return_debug_mask, scale);
}

} // namespace

ProductOutputs packed_cudnn_forward(const PackedCall& call, bool compute_logsumexp) {
  const auto& [query, key, value, sequences, dropout, is_causal, scale] = call;
  CurrentDevice guard(query.device().index());
  const int64_t heads = query.size(1);
  const auto seed = at::empty({}, query.options().dtype(at::kLong));
  const auto offset = at::empty({}, query.options().dtype(at::kLong));
  Recipe recipe = recipe_of(query, {}, is_causal, scale);
  if (dropout != 0) {
    recipe.dropout.probability = dropout;
    std::tie(recipe.dropout.seed, recipe.dropout.offset) = take_dropout(
        query,
        static_cast<uint64_t>(sequences.count(query) * heads * sequences.longest_query) *
            static_cast<uint64_t>(sequences.longest_key));
  }
  const auto output = at::empty({query.size(0), heads, value.size(2)}, query.options());
  at::Tensor logsumexp;
  if (compute_logsumexp) {
    logsumexp = at::empty({query.size(0), heads, 1}, query.options().dtype(at::kFloat));
  }
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    if (dropout != 0) {
      twin_of(seed).fill_(static_cast<int64_t>(recipe.dropout.seed));
      twin_of(offset).fill_(static_cast<int64_t>(recipe.dropout.offset));
    }
    compute_forward(
        {query, key, value}, output, sequences, recipe,
        compute_logsumexp ? packed_logsumexp(logsumexp) : LogsumexpOf());
  }
  charge_forward(
      query, work_of(query, value, sequences, recipe.band), {query, key, value, output, logsumexp});
  return {
      output, logsumexp, *sequences.query_starts, *sequences.key_starts, sequences.longest_query,
      sequences.longest_key, seed, offset, at::Tensor()};
}

ThreeTensors packed_cudnn_backward(
    const PackedCall& call,
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset) {
  const auto& [query, key, value, sequences, dropout, is_causal, scale] = call;
  CurrentDevice guard(query.device().index());
  const OnDevice results{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
  Recipe recipe = recipe_of(query, {}, is_causal, scale);
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    if (dropout != 0) {
      recipe.dropout = {
          dropout, static_cast<uint64_t>(twin_of(seed).item<int64_t>()),
          static_cast<uint64_t>(twin_of(offset).item<int64_t>())};
    }
    compute_backward(
        gradient, {query, key, value}, output, results, /*bias_result=*/{}, sequences, recipe,
        packed_logsumexp(logsumexp));
  }
  charge_backward(
      query, work_of(query, value, sequences, recipe.band),
      {gradient, query, key, value, output, logsumexp, results.query, results.key,
       results.value});
  return {results.query, results.key, results.value};
}

void register_cudnn_attention(torch::Library& library, Names& names) {
  const char* const forward = "_cudnn_attention_forward";
  if (has_arguments(forward, 13)) {
    register_kernel(library, names, forward, cudnn_forward<>);
  } else if (has_arguments(forward, 15)) {
    register_kernel(
        library, names, forward, cudnn_forward<const OptionalTensor&, const OptionalTensor&>);
  }
  register_kernel(library, names, "_cudnn_attention_backward", cudnn_backward);
  register_kernel(library, names, "_scaled_dot_product_cudnn_attention", product_cudnn_forward);
  // The same arguments and results: the wrapper of the forward alone works out lengths.
  register_kernel(library, names, "_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
}

} // namespace anyrig::virtual_gpu
