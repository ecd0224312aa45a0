// FlashAttention 2 on the tensors of its own operators: (batch, tokens, heads, head size), or, for
// packed sequences, (all tokens, heads, head size) with the start of each sequence.
#pragma once

#include "attention/attention_sequences.h"

namespace anyrig::virtual_gpu {

// The arguments of the forward operators.
struct FlashCall {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  Sequences sequences;
  double dropout = 0;
  bool is_causal = false;
  bool return_debug_mask = false;
  std::optional<double> scale;
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;
  OptionalTensor alibi;
  std::optional<int64_t> splits;
  OptionalTensor out;
};

// (output, logsumexp, generator state, unused tensor, debug mask).
using FlashOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FlashGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

FlashOutputs flash_forward(const FlashCall& call);

// Returns the gradients of `flash_forward`. `call` has the same arguments as there; `output`,
// `logsumexp` and `rng_state` are its results, and `gradient` is the gradient of the output.
FlashGradients flash_backward(
    const FlashCall& call,
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& rng_state);

} // namespace anyrig::virtual_gpu
