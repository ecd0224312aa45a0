// cuDNN attention. Tensors are (batch, heads, tokens, head size). The outputs follow attention.cu
// in aten/src/ATen/native/transformers/cuda, and aten/src/ATen/native/cudnn/MHA.cpp. Only cuDNN knows
// the workspaces of its plans: those here are what an H100 allocated with cuDNN 9.19, for heads of 64
// numbers. Those of packed sequences are not counted.

#include "attention/attention.h"
#include "attention/cudnn_attention.h"
#include "device/device.h"
#include "dispatch/twin.h"
#include "memory/memory.h"

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

// Returns an empty tensor of `sizes` whose dimensions have the same order in memory as the query's.
// Dimensions with stride 0 in the query come outermost.
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
  std::stable_sort(inner_to_outer.begin(), inner_to_outer.end(), [&stride](int64_t a, int64_t b) {
    return stride(a) < stride(b);
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (const int64_t dimension : inner_to_outer) {
    strides[dimension] = step;
    step *= sizes[dimension];
  }
  return at::empty_strided(sizes, strides, query.options());
}

void reject_paged_keys(const OptionalTensor& used_keys_or_pages) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_given(used_keys_or_pages),
      "virtual GPUs do not support cuDNN attention with paged keys; "
      "torch.backends.cuda.enable_cudnn_sdp(False) makes PyTorch choose another backend");
}

void reject_packed_bias(const OptionalTensor& bias) {
  TORCH_CHECK(!is_given(bias), "attn_bias not yet supported with cuDNN Attention and NestedTensor");
}

Recipe recipe_of(
    const at::Tensor& query,
    const OptionalTensor& bias,
    bool is_causal,
    std::optional<double> scale) {
  Recipe recipe{attention_scale(query, scale), {}, {}, {}};
  if (is_causal) {
    recipe.band.right = 0;
  }
  if (is_given(bias)) {
    const auto twin = twin_of(*bias);
    recipe.bias = twin.dim() == 3 ? twin.unsqueeze(1) : twin;
  }
  return recipe;
}

constexpr int64_t kPlanBytes = 256;

// The gradient of the query in float32, to which the tiles of keys add, and a sum for each query.
int64_t backward_workspace_bytes(const at::Tensor& query) {
  const int64_t queries = query.size(0) * query.size(1) * query.size(2);
  return 4 * (query.numel() + queries) + kPlanBytes;
}

AttentionWork work_of(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    bool is_causal) {
  AttentionShape shape;
  shape.kernel = AttentionKernel::Cudnn;
  shape.batch = static_cast<double>(query.size(0));
  shape.heads = static_cast<double>(query.size(1));
  shape.queries = static_cast<double>(query.size(2));
  shape.keys = static_cast<double>(key.size(2));
  return {
      shape, static_cast<double>(query.size(3)), static_cast<double>(value.size(3)),
      is_causal ? 0.5 : 1};
}

LogsumexpOf packed_logsumexp(const at::Tensor& logsumexp) {
  return [twin = twin_of(logsumexp)](const Sequence& sequence) {
    return twin.narrow(0, sequence.start, sequence.queries).squeeze(-1).t().unsqueeze(0);
  };
}

// `Newer` are the arguments for packed sequences that PyTorch 2.14 added.
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
      {{"query", query},
       {"key", key},
       {"value", value},
       {"attn_bias", bias},
       {"cum_seq_q", query_starts},
       {"cum_seq_k", key_starts}});
  (reject_paged_keys(newer), ...);
  if (is_given(query_starts)) {
    reject_packed_bias(bias);
    return packed_cudnn_forward(
        {query, key, value, Sequences{query_starts, key_starts, {}, {}, longest_query, longest_key},
         dropout, is_causal, scale},
        compute_logsumexp);
  }
  CurrentDevice guard(query.device().index());
  const int64_t batch = query.size(0);
  const int64_t heads = query.size(1);
  // Filled only with dropout.
  const auto seed = at::empty({}, query.options().dtype(at::kLong));
  const auto offset = at::empty({}, query.options().dtype(at::kLong));
  Dropout dropout_state{dropout};
  if (dropout != 0) {
    std::tie(dropout_state.seed, dropout_state.offset) = reserve_random_numbers(
        query,
        static_cast<uint64_t>(batch * heads * longest_query) * static_cast<uint64_t>(longest_key));
  }
  const auto output = empty_in_order_of(query, {batch, heads, longest_query, value.size(3)});
  at::Tensor logsumexp;
  if (compute_logsumexp) {
    logsumexp = at::empty({batch, heads, longest_query}, query.options().dtype(at::kFloat));
  }
  allocate_workspace(kPlanBytes, query.device().index()); // freed at once
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    Recipe recipe = recipe_of(query, bias, is_causal, scale);
    recipe.dropout = dropout_state;
    if (dropout != 0) {
      twin_of(seed).fill_(static_cast<int64_t>(dropout_state.seed));
      twin_of(offset).fill_(static_cast<int64_t>(dropout_state.offset));
    }
    const auto result = attention_forward(twin_of(query), twin_of(key), twin_of(value), recipe);
    twin_of(output).copy_(result.output);
    if (compute_logsumexp) {
      twin_of(logsumexp).copy_(result.logsumexp);
    }
  }
  charge_forward(
      query, work_of(query, key, value, is_causal), {query, key, value, output, logsumexp});
  return {output,      logsumexp, at::Tensor(), at::Tensor(), longest_query,
          longest_key, seed,      offset,       at::Tensor()};
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
    reject_packed_bias(bias);
    return packed_cudnn_backward(
        {query, key, value, Sequences{query_starts, key_starts, {}, {}, longest_query, longest_key},
         dropout, is_causal, scale},
        gradient, output, logsumexp, seed, offset);
  }
  CurrentDevice guard(query.device().index());
  const auto query_gradient = at::empty_like(query);
  const auto key_gradient = at::empty_like(key);
  const auto value_gradient = at::empty_like(value);
  at::Tensor matching_gradient = gradient;
  if (gradient.strides() != output.strides()) {
    matching_gradient = at::empty_like(output); // cuDNN needs both in one layout
    matching_gradient.copy_(gradient);
  }
  allocate_workspace(backward_workspace_bytes(query), query.device().index()); // freed at once
  if (!shape_only() && query.numel() > 0 && key.numel() > 0) {
    Recipe recipe = recipe_of(query, bias, is_causal, scale);
    if (dropout != 0) {
      recipe.dropout = {
          dropout, static_cast<uint64_t>(twin_of(seed).item<int64_t>()),
          static_cast<uint64_t>(twin_of(offset).item<int64_t>())};
    }
    const auto result = attention_backward(
        twin_of(matching_gradient), twin_of(query), twin_of(key), twin_of(value),
        {twin_of(output), twin_of(logsumexp)}, recipe, /*needs_bias_gradient=*/false);
    twin_of(query_gradient).copy_(result.query);
    twin_of(key_gradient).copy_(result.key);
    twin_of(value_gradient).copy_(result.value);
  }
  charge_backward(
      query, work_of(query, key, value, is_causal),
      {gradient, query, key, value, output, logsumexp, query_gradient, key_gradient,
       value_gradient});
  return {query_gradient, key_gradient, value_gradient};
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
    std::tie(recipe.dropout.seed, recipe.dropout.offset) = reserve_random_numbers(
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
      query, work_of(AttentionKernel::Cudnn, query, value, sequences, recipe.band),
      {query, key, value, output, logsumexp});
  return {
      output,
      logsumexp,
      *sequences.query_starts,
      *sequences.key_starts,
      sequences.longest_query,
      sequences.longest_key,
      seed,
      offset,
      at::Tensor()};
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
  const QueryKeyValue results{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
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
      query, work_of(AttentionKernel::Cudnn, query, value, sequences, recipe.band),
      {gradient, query, key, value, output, logsumexp, results.query, results.key, results.value});
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
  // Takes the arguments of `_cudnn_attention_backward`; only the forward operators differ.
  register_kernel(library, names, "_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
}

} // namespace anyrig::virtual_gpu
