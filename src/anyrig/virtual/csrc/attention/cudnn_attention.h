// cuDNN attention of packed sequences, in tensors (all tokens, heads, head size).
#pragma once

#include "attention/attention_sequences.h"

namespace anyrig::virtual_gpu {

struct PackedCall {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  Sequences sequences;
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;
};

// Returns the results of `_cudnn_attention_forward`. The logsumexp is (all tokens, heads, 1).
ProductOutputs packed_cudnn_forward(const PackedCall& call, bool compute_logsumexp);

std::tuple<at::Tensor, at::Tensor, at::Tensor> packed_cudnn_backward(
    const PackedCall& call,
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Tensor& logsumexp,
    const at::Tensor& seed,
    const at::Tensor& offset);

} // namespace anyrig::virtual_gpu
