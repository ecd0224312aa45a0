// The numbers of attention, computed on the CPU: what every fused operator of a card gives.
//
//   scores     = scale * query @ key^T + bias, with -inf outside of the band
//   logsumexp  = log(sum(exp(scores)))
//   attention  = exp(scores - logsumexp), zeroed and scaled by dropout
//   output     = attention @ value
//
// Tensors are of the host and of layout (batch, heads, tokens, numbers of a head). Keys and values
// may have fewer heads: each then serves a group of the query's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <algorithm>
#include <optional>

namespace anyrig::virtual_gpu {

// Which keys a query sees: from `left` before the one across from it to `right` after it. Query
// and key 0 are across from each other, or, where sequences are aligned at their ends, the last.
struct Band {
  std::optional<int64_t> left;
  std::optional<int64_t> right;
  bool aligned_at_end = false;

  bool is_everything() const {
    return !left.has_value() && !right.has_value();
  }
  // Of the scores of `keys` keys, those that a card computes: it skips blocks that the band hides.
  double share(int64_t keys) const {
    const double below = right.has_value() ? 0.5 : 1;
    return left.has_value() && right.has_value()
        ? std::min(below, static_cast<double>(*left + *right + 1) / static_cast<double>(keys))
        : below;
  }
};

// What the numbers of dropout follow from, so that the backward drops what the forward dropped.
struct Dropout {
  double probability = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  // Of one score after the other, as memory-efficient attention draws them: how many numbers a head
  // takes. 0 where a card's numbers depend on the tiles of its kernel; then these are others.
  int64_t head_step = 0;
  uint64_t sequence_step = 1; // from one packed sequence to the next
};

struct Recipe {
  double scale = 1;
  Band band;
  Dropout dropout;
  at::Tensor bias;  // undefined, or it broadcasts to the scores
  at::Tensor alibi; // undefined, or a slope per head, or per batch and head
};

struct Attention {
  at::Tensor output;    // (batch, heads, queries, numbers of a value), of the query's dtype
  at::Tensor logsumexp; // (batch, heads, queries), float32; inf for a query that sees nothing
};

struct Gradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor bias; // of the scores' shape; undefined unless asked for
};

Attention attend(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Recipe& recipe);

Gradients attend_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Attention& forward,
    const Recipe& recipe,
    bool bias_gradient);

// Which scores dropout keeps, for scores of `sizes`, (batch, heads, queries, keys).
at::Tensor kept_scores(at::IntArrayRef sizes, const Dropout& dropout);

// The numbers that memory-efficient attention compares with its probability, (…, heads, queries,
// keys), float32.
void draw_score_numbers(const at::Tensor& numbers, const Dropout& dropout);

// exp(scores - the largest of a query), which flash attention returns on demand, (batch, heads,
// queries, keys); negative where dropout drops.
at::Tensor signed_attention(const at::Tensor& query, const at::Tensor& key, const Recipe& recipe);

} // namespace anyrig::virtual_gpu
