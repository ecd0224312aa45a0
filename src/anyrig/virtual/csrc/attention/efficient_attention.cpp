// Memory-efficient attention. The tensors of its operators are (batch, tokens, heads, head size);
// packed sequences are concatenated in a batch of one. Checks, outputs and scratch memory follow
// attention.cu and attention_backward.cu in aten/src/ATen/native/transformers/cuda.
//
// Longer than 400 lines: both directions share the checks and the layout of the scratch memory.

#include "attention/attention_sequences.h"
#include "attention/efficient_workspace.h"
#include "device/device.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "random/random_source.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/empty.h>

#include <array>

namespace anyrig::virtual_gpu {
namespace {

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The logsumexp's rows are rounded up to a multiple of this, so that the backward kernel can load
// whole blocks.
constexpr int64_t kLogsumexpRows = 32;

void check_shapes(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Sequences& sequences,
    bool bias,
    std::optional<int64_t> longest_query) {
  TORCH_CHECK(query.dim() == 4);
  TORCH_CHECK(key.dim() == 4);
  TORCH_CHECK(value.dim() == 4);
  TORCH_CHECK(query.size(0) == key.size(0) && query.size(0) == value.size(0));
  TORCH_CHECK(key.size(1) == value.size(1));
  TORCH_CHECK(query.size(2) == key.size(2) && query.size(2) == value.size(2));
  TORCH_CHECK(query.size(3) == key.size(3));
  TORCH_CHECK(is_given(sequences.query_starts) == is_given(sequences.key_starts));
  TORCH_CHECK(!(sequences.packed() && bias), "cu seqlen + bias not supported");
  if (sequences.packed()) {
    TORCH_CHECK(sequences.query_starts->scalar_type() == at::kInt);
    TORCH_CHECK(sequences.key_starts->scalar_type() == at::kInt);
    TORCH_CHECK(sequences.query_starts->size(0) == sequences.key_starts->size(0));
    TORCH_CHECK(query.size(0) == 1, "cu_seqlen only supports batch_size=1");
    TORCH_CHECK(longest_query.has_value(), "max_seqlen_q must be provided with cu_seqlens_q");
  }
  for (const auto& tensor : {query, key, value}) {
    TORCH_CHECK(tensor.stride(-1) == 1, "Expected the last dimension to be contiguous");
  }
}

Band band_of(int64_t mask_type, std::optional<int64_t> window) {
  const auto type = static_cast<sdp::CustomMaskType>(mask_type);
  Band band;
  band.aligned_at_end = type == sdp::CustomMaskType::CausalFromBottomRight;
  if (type != sdp::CustomMaskType::NoCustomMask) {
    band.right = 0;
  }
  if (window.has_value() && *window > 0) {
    band.left = *window - 1;
  }
  return band;
}

EfficientCall make_efficient_call(
    const at::Tensor& query,
    const at::Tensor& value,
    const Sequences& sequences,
    double dropout) {
  const DeviceFacts& facts = devices()[query.device().index()];
  EfficientCall call;
  call.sequences = sequences.count(query);
  call.heads = query.size(2);
  call.queries = sequences.longest_query;
  call.keys = sequences.longest_key;
  call.head_size = query.size(3);
  call.value_head_size = value.size(3);
  call.half = query.element_size() == 2;
  call.dropout = dropout != 0;
  call.packed = sequences.packed();
  call.capability = 10 * facts.capability_major + facts.capability_minor;
  return call;
}

// The numbers of each head and each sequence begin `queries` * `keys` after those of the one before.
Dropout dropout_of(
    double probability,
    uint64_t seed,
    uint64_t offset,
    const EfficientCall& call,
    int64_t keys) {
  const int64_t scores_per_head = call.queries * keys;
  return {probability,     seed,
          offset,          /*in_order=*/true,
          scores_per_head, static_cast<uint64_t>(call.heads * scores_per_head)};
}

// Returns the accessor of each sequence's part of `logsumexp`, without the padding rows.
LogsumexpOf logsumexp_parts(const at::Tensor& logsumexp, bool packed) {
  return [sums = twin_of(logsumexp), packed](const Sequence& sequence) {
    const auto rows = packed ? sums.narrow(0, sequence.index, 1) : sums;
    return rows.narrow(2, 0, sequence.queries);
  };
}

// Removes the batch dimension of packed sequences, which has size 1.
at::Tensor without_batch(const at::Tensor& tensor, const Sequences& sequences) {
  return sequences.packed() ? tensor.squeeze(0) : tensor;
}

QueryKeyValue without_batch(const QueryKeyValue& tensors, const Sequences& sequences) {
  return {
      without_batch(tensors.query, sequences), without_batch(tensors.key, sequences),
      without_batch(tensors.value, sequences)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt>
efficient_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    const OptionalTensor& query_starts,
    const OptionalTensor& key_starts,
    std::optional<int64_t> longest_query_given,
    std::optional<int64_t> longest_key_given,
    double dropout,
    int64_t mask_type,
    bool compute_logsumexp,
    std::optional<double> scale,
    const OptionalTensor& key_lengths,
    std::optional<int64_t> window) {
  check_same_device(
      "_efficient_attention_forward",
      {{"query", query},
       {"key", key},
       {"value", value},
       {"bias", bias},
       {"cu_seqlens_q", query_starts},
       {"cu_seqlens_k", key_starts},
       {"seqlen_k", key_lengths}});
  CurrentDevice guard(query.device().index());
  const int64_t batch = query.size(0);
  const int64_t queries = query.size(1);
  const int64_t heads = query.size(2);
  // For packed sequences, too, CUDA's code uses the total number of keys here.
  Sequences sequences{query_starts, key_starts, key_lengths, {}, queries, key.size(1)};
  check_shapes(query, key, value, sequences, is_given(bias), longest_query_given);
  if (sequences.packed()) {
    sequences.longest_query = *longest_query_given;
  }
  const auto call = make_efficient_call(query, value, sequences, dropout);

  const Band band = band_of(mask_type, window);
  Recipe recipe{attention_scale(query, scale), band, {}, {}};
  // CPU tensors, unless a graph is being captured. Filled only with dropout.
  at::Tensor seed = at::empty({}, at::kLong);
  at::Tensor offset = at::empty({}, at::kLong);
  if (dropout != 0) {
    // One random number for each score.
    const auto state = reserve_random_numbers(
        query, static_cast<uint64_t>(batch * heads * queries) * static_cast<uint64_t>(key.size(1)));
    // CUDA's code passes 0 keys for packed sequences, so that all heads of all sequences drop the
    // same scores (https://github.com/pytorch/pytorch/issues/115590).
    recipe.dropout =
        dropout_of(dropout, state.first, state.second, call, sequences.packed() ? 0 : call.keys);
    seed.fill_(static_cast<int64_t>(state.first));
    offset.fill_(static_cast<int64_t>(state.second));
  }
  const auto floats = query.options().dtype(at::kFloat);
  const auto output = at::empty({batch, queries, heads, value.size(3)}, query.options());
  const auto logsumexp = at::empty(
      {call.sequences, heads, compute_logsumexp ? round_up(call.queries, kLogsumexpRows) : 0},
      floats);
  at::Tensor accumulator;
  if (needs_output_accumulator(call)) {
    accumulator = at::empty(output.sizes(), floats);
  }
  if (!shape_only() && output.numel() > 0) {
    if (is_given(bias)) {
      recipe.bias = twin_of(*bias);
    }
    compute_forward(
        without_batch({query, key, value}, sequences), without_batch(output, sequences), sequences,
        recipe, compute_logsumexp ? logsumexp_parts(logsumexp, sequences.packed()) : LogsumexpOf());
  }
  charge_forward(
      query, work_of(AttentionKernel::Efficient, query, value, sequences, band),
      {query, key, value, is_given(bias) ? *bias : at::Tensor(), output, logsumexp});
  return {output, logsumexp, seed, offset, call.queries, longest_key_given.value_or(call.keys)};
}

// Returns the scratch memory of delta, the sum over each row of output times its gradient. Some
// kernels compute delta themselves. For the others PyTorch computes delta first, in one expression,
// so the temporary tensors of that computation are freed once delta exists.
at::Tensor allocate_delta(const EfficientCall& call, const at::Tensor& output) {
  const auto floats = output.options().dtype(at::kFloat);
  const at::IntArrayRef sizes = output.sizes();
  const bool computed_by_kernel = call.half &&
      (backward_kernel(call).keeps_output(call.half) || call.capability < 70 ||
       call.capability >= 75);
  if (computed_by_kernel) {
    return at::empty({sizes[0], sizes[2], sizes[1]}, floats);
  }
  Scratch wide;
  if (call.half) {
    wide = {at::empty(sizes, floats), at::empty(sizes, floats)};
  }
  const auto product = at::empty(sizes, floats);
  const auto sum = at::empty({sizes[0], sizes[1], sizes[2]}, floats);
  return at::empty({sizes[0], sizes[2], sizes[1]}, floats);
}

FourTensors efficient_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    const at::Tensor& output,
    const OptionalTensor& query_starts,
    const OptionalTensor& key_starts,
    int64_t longest_query,
    int64_t longest_key,
    const at::Tensor& logsumexp,
    double dropout,
    const at::Tensor& seed,
    const at::Tensor& offset,
    int64_t mask_type,
    bool bias_requires_grad,
    std::optional<double> scale,
    std::optional<int64_t> key_splits,
    std::optional<int64_t> window,
    bool shared_storage) {
  if (!gradient.defined()) {
    return {};
  }
  CurrentDevice guard(query.device().index());
  Sequences sequences{query_starts, key_starts, {}, {}, longest_query, longest_key};
  check_shapes(query, key, value, sequences, is_given(bias), longest_query);
  if (!sequences.packed()) {
    sequences.longest_query = query.size(1);
    sequences.longest_key = key.size(1);
  }
  const int64_t heads = query.size(2);
  const auto dense_gradient = gradient.contiguous();

  at::Tensor query_gradient;
  at::Tensor key_gradient;
  at::Tensor value_gradient;
  if (shared_storage) {
    TORCH_CHECK(
        query.size(1) == key.size(1) && query.size(3) == key.size(3),
        "`shared_storage_dqdkdv` is only supported when Q/K/V have the same sequence length and "
        "embed dim: got ",
        query.sizes(), " for Q, and ", key.sizes(), " for K");
    const auto chunk =
        at::empty({query.size(0), query.size(1), 3, query.size(2), query.size(3)}, query.options());
    query_gradient = chunk.select(2, 0);
    key_gradient = chunk.select(2, 1);
    value_gradient = chunk.select(2, 2);
  } else {
    query_gradient = at::empty(query.sizes(), query.options());
    key_gradient = at::empty(key.sizes(), key.options());
    value_gradient = at::empty(value.sizes(), value.options());
  }
  at::Tensor bias_gradient;
  if (bias_requires_grad) {
    auto sizes = bias->sizes().vec();
    const int64_t columns = sizes.back();
    sizes.back() = round_up(columns, 16);
    bias_gradient = at::empty(sizes, bias->options()).slice(-1, 0, columns);
  }
  auto call = make_efficient_call(query, value, sequences, dropout);
  const auto& context = at::globalContext();
  call.deterministic =
      context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  call.requested_splits = key_splits;
  at::Tensor workspace; // freed after delta
  const auto delta = allocate_delta(call, output);
  if (const int64_t bytes = backward_workspace_bytes(call)) {
    workspace = at::empty({bytes}, query.options().dtype(at::kByte));
  }
  const Band band = band_of(mask_type, window);
  if (!shape_only() && query.numel() > 0) {
    Recipe recipe{attention_scale(query, scale), band, {}, {}};
    if (dropout != 0) {
      recipe.dropout = dropout_of(
          dropout, static_cast<uint64_t>(seed.item<int64_t>()),
          static_cast<uint64_t>(offset.item<int64_t>()), call, call.keys);
    }
    if (is_given(bias)) {
      recipe.bias = twin_of(*bias);
    }
    compute_backward(
        without_batch(dense_gradient, sequences), without_batch({query, key, value}, sequences),
        without_batch(output, sequences),
        without_batch({query_gradient, key_gradient, value_gradient}, sequences), bias_gradient,
        sequences, recipe, logsumexp_parts(logsumexp, sequences.packed()));
  }
  charge_backward(
      query, work_of(AttentionKernel::Efficient, query, value, sequences, band),
      {gradient, query, key, value, output, logsumexp, query_gradient, key_gradient,
       value_gradient});
  return {query_gradient, key_gradient, value_gradient, bias_gradient};
}

int64_t mask_type_of(bool is_causal) {
  return static_cast<int64_t>(
      is_causal ? sdp::CustomMaskType::CausalFromTopLeft : sdp::CustomMaskType::NoCustomMask);
}

FourTensors product_efficient_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& bias,
    bool compute_logsumexp,
    double dropout,
    bool is_causal,
    std::optional<double> scale) {
  check_same_device(
      "_scaled_dot_product_efficient_attention",
      {{"query", query}, {"key", key}, {"value", value}, {"attn_bias", bias}});
  auto [output, logsumexp, seed, offset, longest_query, longest_key] = efficient_forward(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias, std::nullopt,
      std::nullopt, std::nullopt, std::nullopt, dropout, mask_type_of(is_causal), compute_logsumexp,
      scale, std::nullopt, std::nullopt);
  return {output.transpose(1, 2), logsumexp, seed, offset};
}

FourTensors product_efficient_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& bias,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset,
    double dropout,
    std::array<bool, 4> gradient_mask,
    bool is_causal,
    std::optional<double> scale) {
  if (!gradient.defined()) {
    return {};
  }
  auto [query_gradient, key_gradient, value_gradient, bias_gradient] = efficient_backward(
      gradient.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
      bias, output.transpose(1, 2), std::nullopt, std::nullopt, query.size(2), key.size(2),
      logsumexp, dropout, seed, offset, mask_type_of(is_causal), gradient_mask[3], scale,
      std::nullopt, std::nullopt, /*shared_storage=*/false);
  return {
      query_gradient.transpose(1, 2), key_gradient.transpose(1, 2), value_gradient.transpose(1, 2),
      bias_gradient};
}

// _fill_mem_eff_dropout_mask_: fills `self` with the random numbers that a call of the operator
// with this generator state draws.
at::Tensor& fill_dropout_numbers(
    at::Tensor& self,
    double probability,
    int64_t seed,
    int64_t offset) {
  TORCH_CHECK(self.is_contiguous());
  TORCH_CHECK(self.dtype() == at::kFloat, "dtype must be float");
  TORCH_CHECK(self.dim() == 4, "expected a tensor of (batch, heads, queries, keys)");
  if (self.numel() > 0) {
    give_own_memory(self);
    charge_kernel(self.device().index(), static_cast<int64_t>(self.nbytes()));
    if (!shape_only()) {
      draw_dropout_numbers(
          twin_of(self),
          {probability, static_cast<uint64_t>(seed), static_cast<uint64_t>(offset),
           /*in_order=*/true, self.size(2) * self.size(3)});
    } else {
      forget_values(self, WhyUnknown::DrawnNumbers);
    }
  }
  return self;
}

} // namespace

void register_efficient_attention(torch::Library& library, Names& names) {
  register_kernel(library, names, "_efficient_attention_forward", efficient_forward);
  register_kernel(library, names, "_efficient_attention_backward", efficient_backward);
  register_kernel(
      library, names, "_scaled_dot_product_efficient_attention", product_efficient_forward);
  register_kernel(
      library, names, "_scaled_dot_product_efficient_attention_backward",
      product_efficient_backward);
  register_kernel(library, names, "_fill_mem_eff_dropout_mask_", fill_dropout_numbers);
}

} // namespace anyrig::virtual_gpu
