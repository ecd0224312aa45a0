// The sequences of one call of flash or memory-efficient attention, and the numbers of each.
//
// All are of one length, in tensors of layout (batch, tokens, heads, numbers of a head), or they
// are packed one after the other in (all tokens, heads, numbers of a head).
#pragma once

#include "attention/attention.h"

#include <functional>

namespace anyrig::virtual_gpu {

struct Sequences {
  OptionalTensor query_starts; // (sequences + 1), int32; given if packed
  OptionalTensor key_starts;
  OptionalTensor used_keys;   // (sequences), int32: only so many keys of each count
  OptionalTensor block_table; // (sequences, pages), int32: the pages with each one's keys
  int64_t longest_query = 0;
  int64_t longest_key = 0;

  bool packed() const {
    return is_given(query_starts);
  }
  int64_t count(const at::Tensor& query) const {
    return packed() ? query_starts->numel() - 1 : query.size(0);
  }
  // Of each head. The lengths of packed sequences are values: in ShapeOnly all count as the longest.
  double score_count(const at::Tensor& query) const;
};

// One of several packed sequences; one that stands for all where they are not packed.
struct Sequence {
  int64_t index = 0;
  int64_t start = 0; // among all queries
  int64_t queries = 0;
};

// Where the logsumexp of a sequence is, as a host tensor (batch, heads, queries). Each operator
// keeps it in a layout of its own.
using LogsumexpOf = std::function<at::Tensor(const Sequence&)>;

struct OnDevice {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// What a card does of it; the last dimensions but one are the heads.
AttentionWork work_of(
    const at::Tensor& query, const at::Tensor& value, const Sequences& sequences, const Band& band);

// Writes `output` on the device, and the logsumexp unless `logsumexp_of` is empty.
void compute_forward(
    const OnDevice& operands,
    const at::Tensor& output,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of);

// Writes `result`, (sequences, heads, queries, keys) with room beyond the longest, on the device.
void compute_signed_attention(
    const OnDevice& operands,
    const at::Tensor& result,
    const Sequences& sequences,
    const Recipe& recipe);

// Writes `results` on the device, and the gradient of the bias if `bias_result` is defined.
void compute_backward(
    const at::Tensor& gradient,
    const OnDevice& operands,
    const at::Tensor& output,
    const OnDevice& results,
    const at::Tensor& bias_result,
    const Sequences& sequences,
    const Recipe& recipe,
    const LogsumexpOf& logsumexp_of);

} // namespace anyrig::virtual_gpu
