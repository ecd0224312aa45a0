// The signatures of FlashAttention's operators: its own, and those that
// scaled_dot_product_attention calls, where the heads come before the tokens.

#include "attention/flash_attention.h"

namespace anyrig::virtual_gpu {
namespace {

// Arguments that PyTorch versions after 2.11 added to the forward operators.
struct NewerArguments {
  OptionalTensor block_table;
  std::optional<int64_t> splits;
};

template <class... Newer>
FlashOutputs run_forward(
    const char* name,
    const OptionalTensor& out,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptionalTensor& query_starts,
    const OptionalTensor& key_starts,
    int64_t longest_query,
    int64_t longest_key,
    double dropout,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale,
    std::optional<int64_t> window_left,
    std::optional<int64_t> window_right,
    const OptionalTensor& used_keys,
    const OptionalTensor& alibi,
    Newer... newer_arguments) {
  const NewerArguments newer{newer_arguments...};
  check_same_device(
      name,
      {{"query", query},
       {"key", key},
       {"value", value},
       {"cum_seq_q", query_starts},
       {"cum_seq_k", key_starts},
       {"seqused_k", used_keys},
       {"alibi_slopes", alibi},
       {"block_table", newer.block_table}});
  Sequences sequences{query_starts,      key_starts,    used_keys,
                      newer.block_table, longest_query, longest_key};
  if (!sequences.packed()) {
    sequences.longest_query = query.size(1);
    sequences.longest_key = key.size(1);
  }
  return flash_forward(
      {query, key, value, sequences, dropout, is_causal, return_debug_mask, scale, window_left,
       window_right, alibi, newer.splits, out});
}

constexpr const char* kForward = "_flash_attention_forward";
constexpr const char* kForwardInPlace = "_flash_attention_forward_no_dropout_inplace";

template <class... Arguments>
struct FlashForwardOperators {
  static FlashOutputs forward(Arguments... arguments) {
    return run_forward(kForward, std::nullopt, arguments...);
  }
  static at::Tensor forward_in_place(at::Tensor& out, Arguments... arguments) {
    return std::get<1>(run_forward(kForwardInPlace, out, arguments...));
  }
};

// The forward operators, whose arguments have the types of `run_forward`'s from the query on.
template <class... Newer>
using FlashForward = FlashForwardOperators<
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const OptionalTensor&,
    const OptionalTensor&,
    int64_t,
    int64_t,
    double,
    bool,
    bool,
    std::optional<double>,
    std::optional<int64_t>,
    std::optional<int64_t>,
    const OptionalTensor&,
    const OptionalTensor&,
    Newer...>;

ProductOutputs product_flash_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  check_same_device(
      "_scaled_dot_product_flash_attention", {{"query", query}, {"key", key}, {"value", value}});
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  TORCH_CHECK(keys == value.size(2), "Key and Value must have the same sequence length");
  auto [output, logsumexp, rng_state, unused, debug_mask] = flash_forward(
      {query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
       Sequences{{}, {}, {}, {}, queries, keys}, dropout, is_causal, return_debug_mask, scale});
  return {
      output.transpose(1, 2),
      logsumexp,
      at::Tensor(),
      at::Tensor(),
      queries,
      keys,
      rng_state,
      unused,
      debug_mask};
}

FlashGradients flash_backward_operator(
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
    std::optional<double> scale,
    std::optional<int64_t> window_left,
    std::optional<int64_t> window_right) {
  const Sequences sequences{query_starts, key_starts, {}, {}, longest_query, longest_key};
  return flash_backward(
      {query, key, value, sequences, dropout, is_causal, /*return_debug_mask=*/false, scale,
       window_left, window_right},
      gradient, output, logsumexp, rng_state);
}

FlashGradients product_flash_backward(
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
  const Sequences sequences{query_starts, key_starts, {}, {}, longest_query, longest_key};
  const auto [query_gradient, key_gradient, value_gradient] = flash_backward(
      {query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), sequences, dropout,
       is_causal, /*return_debug_mask=*/false, scale},
      gradient.transpose(1, 2), output.transpose(1, 2), logsumexp, rng_state);
  return {
      query_gradient.transpose(1, 2), key_gradient.transpose(1, 2), value_gradient.transpose(1, 2)};
}

} // namespace

void register_flash_attention(torch::Library& library, Names& names) {
  if (has_arguments(kForward, 15)) {
    register_kernel(library, names, kForward, FlashForward<>::forward);
  } else if (has_arguments(kForward, 16)) {
    register_kernel(library, names, kForward, FlashForward<const OptionalTensor&>::forward);
  } else if (has_arguments(kForward, 17)) {
    register_kernel(
        library, names, kForward,
        FlashForward<const OptionalTensor&, std::optional<int64_t>>::forward);
  }
  if (has_arguments(kForwardInPlace, 18)) {
    register_kernel(
        library, names, kForwardInPlace,
        FlashForward<const OptionalTensor&, std::optional<int64_t>>::forward_in_place);
  }
  register_kernel(library, names, "_flash_attention_backward", flash_backward_operator);
  register_kernel(library, names, "_scaled_dot_product_flash_attention", product_flash_forward);
  register_kernel(
      library, names, "_scaled_dot_product_flash_attention_backward", product_flash_backward);
}

} // namespace anyrig::virtual_gpu
