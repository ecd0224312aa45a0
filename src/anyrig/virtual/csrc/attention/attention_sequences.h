// The sequences of one call of a fused operator, and the computation of each sequence.
//
// All sequences have one length, in tensors (batch, tokens, heads, head size), or they are packed:
// concatenated in tensors (all tokens, heads, head size).
#pragma once

#include "attention/attention.h"

#include <functional>

namespace anyrig::virtual_gpu {

struct Sequences {
  OptionalTensor query_starts; // (sequences + 1), int32; given if packed
  OptionalTensor key_starts;
  OptionalTensor used_keys;   // (sequences), int32: how many keys of each sequence are used
  OptionalTensor block_table; // (sequences, pages), int32: the pages with each sequence's keys
  int64_t longest_query = 0;
  int64_t longest_key = 0;

  bool packed() const { return is_given(query_starts); }
  int64_t count(const at::Tensor& query) const {
    return packed() ? query_starts->numel() - 1 : query.size(0);
  }
  // Returns the number of scores of one head. In ShapeOnly the lengths of packed sequences are
  // unknown, so every sequence counts as the longest.
  double score_count(const at::Tensor& query) const;
};

// One packed sequence, or the whole batch if the sequences are not packed.
struct Sequence {
  int64_t index = 0;
  int64_t start = 0; // among all queries
  int64_t queries = 0;
};

// Returns the logsumexp of a sequence as a CPU tensor (batch, heads, queries). Each operator stores
// it in a different layout.
using LogsumexpOf = std::function<at::Tensor(const Sequence&)>;

// Tensors on the device: the inputs of attention, or their gradients.
struct QueryKeyValue {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// Returns the size of a call, for the clock. `query` and `value` are (..., heads, head size).
AttentionWork work_of(
    AttentionKernel kernel,
    const at::Tensor& query,
    const at::Tensor& value,
    const Sequences& sequences,
    const Band& band);

// Computes attention and writes `output` on the device, and the logsumexp unless `logsumexp_of` is
// empty.
void compute_forward(
    const QueryKeyValue& operands,
    const at::Tensor& output,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of);

// Writes the `signed_attention` of each sequence to `result` on the device, (sequences, heads,
// queries, keys), which may be larger than the longest sequence.
void compute_signed_attention(
    const QueryKeyValue& operands,
    const at::Tensor& result,
    const Sequences& sequences,
    const Recipe& recipe);

// Writes the gradients to `results` on the device, and the gradient of the bias to `bias_result` if
// that is defined.
void compute_backward(
    const at::Tensor& gradient,
    const QueryKeyValue& operands,
    const at::Tensor& output,
    const QueryKeyValue& results,
    const at::Tensor& bias_result,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of);

} // namespace anyrig::virtual_gpu
