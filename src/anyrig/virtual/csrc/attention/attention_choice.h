// Which operator scaled dot product attention runs on a card: cuDNN's, flash, memory-efficient, or
// the plain formula ("math").
//
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp decides: the operators are tried in the
// order of priority, and the first one whose filters all let the call pass is taken. The filters
// look at the flags of torch.backends.cuda, at shapes, dtypes and strides, and at the compute
// capability of the current device. With `explain`, a filter that refuses warns why.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace anyrig::virtual_gpu {

// The cuDNN of the CUDA 13 wheels of PyTorch 2.13 (nvidia-cudnn-cu13 9.20.0), as its
// cudnnGetVersion() counts.
inline constexpr long kCudnnVersion = 92000;

bool can_use_cudnn_attention(const sdp::sdp_params& params, bool explain);
bool can_use_flash_attention(const sdp::sdp_params& params, bool explain);
bool can_use_efficient_attention(const sdp::sdp_params& params, bool explain);

// Returns SDPBackend::error if every backend is disabled. Raises "No available kernel. Aborting
// execution." if the enabled ones refuse, after warnings that say why.
sdp::SDPBackend choose_attention(const sdp::sdp_params& params);

// Whether every sequence of a nested query is longer than one, as packed projections need.
bool has_no_single_tokens(const at::Tensor& query);

} // namespace anyrig::virtual_gpu
