// FlashAttention 2 on the tensors of its own operators: (batch, tokens, heads, numbers of a head),
// or, with sequences of several lengths, (all tokens, heads, numbers of a head) and the place at
// which each sequence starts.
#pragma once

#include "attention/attention_sequences.h"

namespace anyrig::virtual_gpu {

// Arguments of the forward operators.
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

// The output, logsumexp, the state of the generator, an unused tensor and the debug mask.
using FlashOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FlashGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

FlashOutputs flash_forward(const FlashCall& call);

// `call` as in the forward; what its results were, and the gradient of the output.
FlashGradients flash_backward(
    const FlashCall& call,
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& rng_state);

} // namespace anyrig::virtual_gpu
