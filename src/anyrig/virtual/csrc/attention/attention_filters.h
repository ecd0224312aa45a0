// The filters of attention_choice.h. Each checks one requirement of an operator, and with `explain`
// warns in PyTorch's words if the requirement is not met. PyTorch's header sdp_utils_cpp.h has the
// filters that CUDA shares with the CPU.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace anyrig::virtual_gpu {

// Filters of several operators.
bool check_device(const sdp::sdp_params& params, bool explain);
bool check_half_dtype(const sdp::sdp_params& params, bool explain);

// Flash attention.
bool check_flash_capability(const sdp::sdp_params& params, bool explain);
bool check_flash_head_size(const sdp::sdp_params& params, bool explain);
bool check_flash_nested_head_size(const sdp::sdp_params& params, bool explain);
bool check_flash_backward(const sdp::sdp_params& params, bool explain);
bool check_flash_causal(const sdp::sdp_params& params, bool explain);

// Memory-efficient attention.
bool check_efficient_capability(const sdp::sdp_params& params, bool explain);
bool check_efficient_head_size(const sdp::sdp_params& params, bool explain);
bool check_efficient_alignment(const sdp::sdp_params& params, bool explain);
bool check_efficient_dtype(const sdp::sdp_params& params, bool explain);

// cuDNN's attention.
bool check_cudnn_enabled(const sdp::sdp_params& params, bool explain);
bool check_cudnn_nested(const sdp::sdp_params& params, bool explain);
bool check_cudnn_deterministic(const sdp::sdp_params& params, bool explain);
bool check_cudnn_capability(const sdp::sdp_params& params, bool explain);
bool check_cudnn_dropout(const sdp::sdp_params& params, bool explain);
bool check_cudnn_shapes(const sdp::sdp_params& params, bool explain);

} // namespace anyrig::virtual_gpu
