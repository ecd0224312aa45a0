#include "attention/attention_choice.h"

#include "attention/attention_filters.h"
#include "device/device.h"
#include "device/hooks.h"

#include <ATen/Context.h>
#include <c10/util/env.h>

#include <algorithm>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

using sdp::SDPBackend;
using Params = sdp::sdp_params;
using Filter = bool (*)(const Params&, bool explain);

bool all_accept(std::initializer_list<Filter> filters, const Params& params, bool explain) {
  return std::all_of(
      filters.begin(), filters.end(), [&](Filter filter) { return filter(params, explain); });
}

// cuDNN comes first on Hopper and data center Blackwell, unless TORCH_CUDNN_SDPA_DEPRIORITIZED is
// set.
bool prefers_cudnn() {
  static const bool is_deprioritized =
      c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") == true;
  const int major = devices()[current_device()].capability_major;
  return !is_deprioritized && build_versions().cudnn > 91500 && (major == 9 || major == 10);
}

// The first call sets the default order for the whole process, from the device that is current
// then. torch.nn.attention.sdpa_kernel(..., set_priority=True) changes the order.
auto priority_order() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (prefers_cudnn()) {
      at::globalContext().setSDPPriorityOrder({
          static_cast<int64_t>(SDPBackend::cudnn_attention),
          static_cast<int64_t>(SDPBackend::flash_attention),
          static_cast<int64_t>(SDPBackend::efficient_attention),
          static_cast<int64_t>(SDPBackend::math),
      });
    }
  });
  return at::globalContext().sDPPriorityOrder();
}

bool can_use(SDPBackend backend, const Params& params) {
  switch (backend) {
    case SDPBackend::cudnn_attention:
      return can_use_cudnn_attention(params, false);
    case SDPBackend::flash_attention:
      return can_use_flash_attention(params, false);
    case SDPBackend::efficient_attention:
      return can_use_efficient_attention(params, false);
    case SDPBackend::math:
      return at::globalContext().userEnabledMathSDP();
    default: // backends of other device types
      TORCH_CHECK(!at::globalContext().userEnabledOverrideableSDP(), "Invalid backend");
      return false;
  }
}

} // namespace

bool can_use_cudnn_attention(const Params& params, bool explain) {
  const std::initializer_list<Filter> filters = {
      check_cudnn_enabled,        check_cudnn_nested,        check_device,
      sdp::check_tensor_shapes,   check_cudnn_deterministic, check_half_dtype,
      sdp::check_attn_mask_shape, check_cudnn_capability,    check_cudnn_dropout,
  };
  const std::initializer_list<Filter> dense_filters = {
      sdp::check_nonzero_sequence_lengths_dense,
      sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>,
      sdp::check_batch_size_and_num_heads_dense<
          /*gqa=*/true, /*same_heads_of_key_and_value=*/false>,
      check_cudnn_shapes,
  };
  return all_accept(filters, params, explain) &&
      (!sdp::has_only_dense_inputs(params) || all_accept(dense_filters, params, explain));
}

// FlashAttention 2, which PyTorch includes. FlashAttention 3 would accept float8, too.
bool can_use_flash_attention(const Params& params, bool explain) {
  const std::initializer_list<Filter> filters = {
      sdp::check_runtime_disabled_flash,
      check_device,
      sdp::check_tensor_shapes,
      sdp::check_for_attn_mask,
      check_flash_head_size,
      check_flash_capability,
      check_flash_backward,
      check_flash_causal,
      check_half_dtype,
  };
  const std::initializer_list<Filter> nested_filters = {
      sdp::check_batch_size_nested,
      check_flash_nested_head_size,
      sdp::check_for_seq_len_0_nested_tensor,
  };
  const std::initializer_list<Filter> dense_filters = {
      sdp::check_batch_size_and_num_heads_dense</*gqa=*/true>,
      sdp::check_nonzero_sequence_lengths_dense,
      sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>,
  };
  return all_accept(filters, params, explain) &&
      (!sdp::has_for_nested_inputs(params) || all_accept(nested_filters, params, explain)) &&
      (!sdp::has_only_dense_inputs(params) || all_accept(dense_filters, params, explain));
}

bool can_use_efficient_attention(const Params& params, bool explain) {
  const std::initializer_list<Filter> filters = {
      sdp::check_runtime_disabled_mem_efficient,
      check_device,
      check_efficient_capability,
      sdp::check_tensor_shapes,
      check_efficient_head_size,
      check_efficient_alignment,
  };
  const std::initializer_list<Filter> nested_filters = {
      sdp::check_requires_grad_and_nested,
      sdp::check_batch_size_nested,
      sdp::check_for_seq_len_0_nested_tensor,
  };
  const std::initializer_list<Filter> dense_filters = {
      sdp::check_nonzero_sequence_lengths_dense,
      sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>,
      sdp::check_batch_size_and_num_heads_dense</*gqa=*/false>,
  };
  return all_accept(filters, params, explain) &&
      (!sdp::has_for_nested_inputs(params) || all_accept(nested_filters, params, explain)) &&
      (!sdp::has_only_dense_inputs(params) || all_accept(dense_filters, params, explain)) &&
      check_efficient_dtype(params, explain);
}

SDPBackend choose_attention(const Params& params) {
  const auto& context = at::globalContext();
  if (!context.userEnabledMathSDP() && !context.userEnabledFlashSDP() &&
      !context.userEnabledMemEfficientSDP() && !context.userEnabledCuDNNSDP()) {
    return SDPBackend::error;
  }
  for (const SDPBackend backend : priority_order()) {
    if (can_use(backend, params)) {
      return backend;
    }
  }
  TORCH_WARN("Memory efficient kernel not used because:");
  can_use_efficient_attention(params, true);
  TORCH_WARN("Flash attention kernel not used because:");
  can_use_flash_attention(params, true);
  TORCH_WARN("cuDNN attention kernel not used because:");
  can_use_cudnn_attention(params, true);
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

bool has_no_single_tokens(const at::Tensor& query) {
  if (!query.is_nested()) {
    return true;
  }
  const auto lengths = at::native::get_nested_tensor_impl(query)->get_nested_sizes().select(1, 1);
  return lengths.min().item<int64_t>() > 1;
}

} // namespace anyrig::virtual_gpu
