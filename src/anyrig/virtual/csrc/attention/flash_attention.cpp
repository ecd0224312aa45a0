// Checks, outputs and scratch memory follow flash_api.cpp and attention.cu in
// aten/src/ATen/native/transformers/cuda.

#include "attention/flash_attention.h"

#include "attention/flash_splits.h"
#include "device/device.h"
#include "dispatch/twin.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace anyrig::virtual_gpu {
namespace {

void check_capability_and_dtype(const at::Tensor& query) {
  TORCH_CHECK(
      devices()[current_device()].capability_major >= 8,
      "FlashAttention only supports Ampere GPUs or newer.");
  TORCH_CHECK(
      query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16,
      "FlashAttention only support fp16 and bf16 data type");
}

void check_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Sequences& sequences) {
  check_capability_and_dtype(query);
  TORCH_CHECK(key.dtype() == query.dtype(), "query and key must have the same dtype");
  TORCH_CHECK(value.dtype() == query.dtype(), "query and value must have the same dtype");
  for (const auto& tensor : {query, key, value}) {
    TORCH_CHECK(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension");
  }
  const auto head = query.size(-1);
  TORCH_CHECK(head % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!");
  TORCH_CHECK(head <= 256, "FlashAttention forward only supports head dimension at most 256");
  TORCH_CHECK(
      query.size(-2) % key.size(-2) == 0,
      "Number of heads in key/value must divide number of heads in query");
  if (sequences.packed()) {
    TORCH_CHECK(
        sequences.query_starts->scalar_type() == at::kInt, "cu_seqlens_q must have dtype int32");
    TORCH_CHECK(
        sequences.key_starts->scalar_type() == at::kInt, "cu_seqlens_k must have dtype int32");
    TORCH_CHECK(sequences.query_starts->numel() > 1, "batch size must be positive");
    TORCH_CHECK(
        !is_given(sequences.block_table) || key.size(1) % 256 == 0,
        "Paged KV cache block size must be divisible by 256");
  }
}

// A window as wide as the keys is no window. A single query sees the same keys with and without a
// causal mask.
Band band_of(const FlashCall& call) {
  const auto& sequences = call.sequences;
  const auto window = [&](std::optional<int64_t> width) -> std::optional<int64_t> {
    const bool none = !width.has_value() || *width < 0 || *width >= sequences.longest_key;
    return none ? std::nullopt : width;
  };
  Band band{window(call.window_left), window(call.window_right), /*aligned_at_end=*/true};
  if (call.is_causal && sequences.longest_query > 1) {
    band.right = 0;
  }
  return band;
}

// Allocates the memory that holds the results of the splits until they are merged.
Scratch allocate_splits(const SplitCall& call, const at::TensorOptions& floats) {
  const int64_t splits = split_count(call, devices()[current_device()].multiprocessors);
  TORCH_CHECK(splits <= 128, "num_splits > 128 not supported");
  if (splits == 1) {
    return {};
  }
  const int64_t rows = splits * call.batch * call.heads * call.queries;
  const int64_t rounded_head = round_up(call.head_size, call.head_size <= 128 ? 32 : 64);
  return {at::empty({rows}, floats), at::empty({rows, rounded_head}, floats)};
}

// Returns the accessor of each sequence's part of `logsumexp`, which is (batch, heads, queries), or
// (heads, all queries) if packed.
LogsumexpOf logsumexp_parts(const at::Tensor& logsumexp) {
  return [sums = twin_of(logsumexp)](const Sequence& sequence) {
    return sums.dim() == 3 ? sums : sums.narrow(1, sequence.start, sequence.queries).unsqueeze(0);
  };
}

} // namespace

FlashOutputs flash_forward(const FlashCall& call) {
  const auto& [query, key, value, sequences, dropout, causal, return_debug_mask, scale, left, right, alibi, splits, out] =
      call;
  CurrentDevice guard(query.device().index());
  TORCH_CHECK(
      is_given(sequences.query_starts) == is_given(sequences.key_starts),
      "cumulative_sequence_length_q and cumulative_sequence_length_k must be both set or both not "
      "set");
  check_forward(query, key, value, sequences);
  TORCH_CHECK(!is_given(alibi), "This flash attention build does not support alibi.");
  TORCH_CHECK(
      !return_debug_mask || dropout > 0.0, "return_softmax is only supported when p_dropout > 0.0");
  const auto floats = query.options().dtype(at::kFloat);
  const int64_t batch = sequences.count(query);
  const int64_t heads = query.size(-2);

  const at::Tensor output = is_given(out) ? *out : at::empty_like(query);
  const auto logsumexp = sequences.packed()
      ? at::empty({heads, query.size(0)}, floats)
      : at::empty({batch, heads, sequences.longest_query}, floats);
  at::Tensor debug_mask;
  if (return_debug_mask) {
    debug_mask = at::empty(
        {batch, heads, round_up(sequences.longest_query, 128),
         round_up(sequences.longest_key, 128)},
        query.options());
  }
  const Band band = band_of(call);
  const Scratch scratch = allocate_splits(
      {batch, sequences.longest_query, sequences.longest_key, heads, key.size(-2), query.size(-1),
       dropout, splits.value_or(0), sequences.packed(), is_given(sequences.block_table),
       band.is_unlimited()},
      floats);
  const auto integers = query.options().dtype(at::kUInt64);
  auto rng_state = at::empty({2}, integers);
  const auto unused = at::empty({}, integers);
  Recipe recipe{attention_scale(query, scale), band, {}, {}};
  if (dropout > 0.0) {
    const auto [seed, offset] =
        reserve_random_numbers(query, static_cast<uint64_t>(batch * heads * 32));
    recipe.dropout = {dropout, seed, offset};
    rng_state = at::empty({2}, integers); // CUDA's code allocates it twice
  }
  if (!shape_only() && output.numel() > 0) {
    if (dropout > 0.0) {
      auto* state = static_cast<uint64_t*>(twin_of(rng_state).data_ptr());
      state[0] = recipe.dropout.seed;
      state[1] = recipe.dropout.offset;
    }
    compute_forward({query, key, value}, output, sequences, recipe, logsumexp_parts(logsumexp));
    if (return_debug_mask) {
      compute_signed_attention({query, key, value}, debug_mask, sequences, recipe);
    }
  }
  charge_forward(
      query, work_of(AttentionKernel::Flash, query, value, sequences, band),
      {query, key, value, output, logsumexp});
  if (!return_debug_mask) {
    debug_mask = at::empty({0}, query.options());
  }
  return {output, logsumexp, rng_state, unused, debug_mask};
}

FlashGradients flash_backward(
    const FlashCall& call,
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& rng_state) {
  const auto& query = call.query;
  const auto& key = call.key;
  const auto& value = call.value;
  const auto& sequences = call.sequences;
  CurrentDevice guard(query.device().index());
  check_capability_and_dtype(query);
  const auto dense_gradient = gradient.contiguous();
  const auto dense_output = output.contiguous();
  const bool packed = sequences.packed();
  const int64_t batch = sequences.count(query);
  const int64_t heads = query.size(-2);
  const int64_t head = query.size(-1);
  const int64_t rounded_head = round_up(head, head <= 128 ? 32 : 64);
  const int64_t rounded_queries = round_up(sequences.longest_query, 128);
  const auto floats = query.options().dtype(at::kFloat);

  const QueryKeyValue results{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
  Scratch scratch;
  // Packed sequences are 128 rows apart, so that blocks may write beyond the end of a sequence.
  const int64_t rows = packed ? query.size(0) + 128 * batch : rounded_queries;
  scratch.push_back(
      packed ? at::empty({heads, rows}, floats) : at::empty({batch, heads, rows}, floats));
  std::vector<int64_t> accumulator{rows, heads, rounded_head};
  if (!packed) {
    accumulator.insert(accumulator.begin(), batch);
  }
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly()) {
    const int64_t processors = devices()[current_device()].multiprocessors;
    const int64_t blocks = std::max<int64_t>(batch * heads, 1);
    accumulator.insert(accumulator.begin(), (processors + blocks - 1) / blocks);
  }
  scratch.push_back(at::empty(accumulator, floats));
  if (key.size(-2) != heads) {
    // Key and value gradients for each query head; the kernel sums them at the end.
    auto sizes = key.sizes().vec();
    sizes[sizes.size() - 2] = heads;
    scratch.push_back(at::empty(sizes, query.options()));
    scratch.push_back(at::empty(sizes, query.options()));
  }
  const Band band = band_of(call);
  if (!shape_only() && query.numel() > 0) {
    Recipe recipe{attention_scale(query, call.scale), band, {}, {}};
    if (call.dropout > 0.0) {
      const auto* state = static_cast<const uint64_t*>(twin_of(rng_state).const_data_ptr());
      recipe.dropout = {call.dropout, state[0], state[1]};
    }
    compute_backward(
        dense_gradient, {query, key, value}, dense_output, results, /*bias_result=*/{}, sequences,
        recipe, logsumexp_parts(logsumexp));
  }
  charge_backward(
      query, work_of(AttentionKernel::Flash, query, value, sequences, band),
      {gradient, query, key, value, output, logsumexp, results.query, results.key, results.value});
  return {results.query, results.key, results.value};
}

} // namespace anyrig::virtual_gpu
