// The arithmetic of attention on the CPU, for all fused operators.
//
//   scores     = scale * query @ key^T + bias, with -inf outside the band
//   logsumexp  = log(sum(exp(scores)))
//   attention  = exp(scores - logsumexp), zeroed and scaled by dropout
//   output     = attention @ value
//
// All tensors are on the CPU, with layout (batch, heads, tokens, head size). Keys and values may
// have fewer heads than the query; each of their heads then serves a group of query heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace anyrig::virtual_gpu {

// The keys that each query sees: from `left` positions before the query's own position to `right`
// positions after it. No value means no limit. Positions count from the first query and key, or, if
// `aligned_at_end`, from the last.
struct Band {
  std::optional<int64_t> left;
  std::optional<int64_t> right;
  bool aligned_at_end = false;

  bool is_unlimited() const { return !left.has_value() && !right.has_value(); }
  // Returns the share of the scores that CUDA's kernels compute, for `keys` keys: they skip the
  // blocks outside the band.
  double share(int64_t keys) const {
    const double right_share = right.has_value() ? 0.5 : 1;
    return left.has_value() && right.has_value()
        ? std::min(right_share, static_cast<double>(*left + *right + 1) / static_cast<double>(keys))
        : right_share;
  }
};

// What determines the dropout mask, so that the backward pass drops what the forward pass dropped.
struct Dropout {
  double probability = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  // Whether one number is drawn for each score in order, as in memory-efficient attention. The
  // numbers of the other CUDA operators depend on the kernel's tiles; those drawn here differ.
  bool in_order = false;
  int64_t head_step = 0; // in order: added to the offset for each head
  uint64_t sequence_step = 1; // added to the offset for each packed sequence
};

struct Recipe {
  double scale = 1;
  Band band;
  Dropout dropout;
  at::Tensor bias; // undefined, or broadcastable to the scores
};

struct Attention {
  at::Tensor output;    // (batch, heads, queries, value head size), the query's dtype
  at::Tensor logsumexp; // (batch, heads, queries), float32; inf for a query that sees no key
};

struct Gradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor bias; // of the scores' shape; undefined unless requested
};

// Computes attention: with PyTorch's CPU operator if that supports the call, else by the formulas.
Attention attention_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Recipe& recipe);

// Computes the gradients of `attention_forward`, whose results are `forward`. `gradient` is the
// gradient of the output.
Gradients attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Attention& forward,
    const Recipe& recipe,
    bool needs_bias_gradient);

// Returns which scores dropout keeps, as a boolean tensor of `sizes`, (batch, heads, queries,
// keys).
at::Tensor draw_dropout_mask(at::IntArrayRef sizes, const Dropout& dropout);

// Fills `numbers`, (..., heads, queries, keys) in float32, with the random numbers that
// memory-efficient attention compares with the dropout probability.
void draw_dropout_numbers(const at::Tensor& numbers, const Dropout& dropout);

// Returns exp(scores - row maximum), (batch, heads, queries, keys), with negative signs where
// dropout drops. Flash attention returns this as its debug mask.
at::Tensor signed_attention(const at::Tensor& query, const at::Tensor& key, const Recipe& recipe);

} // namespace anyrig::virtual_gpu
