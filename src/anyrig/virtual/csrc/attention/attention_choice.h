// Chooses the operator of scaled dot product attention, as CUDA does: cuDNN, flash,
// memory-efficient, or the plain formula ("math").
//
// The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: the operators are
// tried in the order of priority, and the first one whose filters all accept the call is taken. The
// filters check the flags of torch.backends.cuda, shapes, dtypes and strides, and the compute
// capability of the current device. With `explain`, a filter that rejects the call warns with the
// reason.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace anyrig::virtual_gpu {

bool can_use_cudnn_attention(const sdp::sdp_params& params, bool explain);
bool can_use_flash_attention(const sdp::sdp_params& params, bool explain);
bool can_use_efficient_attention(const sdp::sdp_params& params, bool explain);

// Returns SDPBackend::error if every backend is disabled. If all enabled backends reject the call,
// warns with their reasons and raises "No available kernel. Aborting execution.".
sdp::SDPBackend choose_attention(const sdp::sdp_params& params);

// Returns whether every sequence of `query` has more than one token, as packed projections need.
// True for dense tensors.
bool has_no_single_tokens(const at::Tensor& query);

} // namespace anyrig::virtual_gpu
