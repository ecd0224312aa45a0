#include "attention/attention_filters.h"

#include "device/device.h"

#include <ATen/Context.h>
#include <c10/util/env.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

using Params = sdp::sdp_params;

struct Capability {
  int major;
  int minor;

  bool operator<(const Capability& other) const {
    return major != other.major ? major < other.major : minor < other.minor;
  }
};

// The compute capability of the current device. As in CUDA, the query may be on another device.
Capability capability() {
  const DeviceFacts& facts = devices()[current_device()];
  return {facts.capability_major, facts.capability_minor};
}

// Returns whether the current device's capability is in the range, ends included.
bool is_between(Capability lowest, Capability highest) {
  const Capability current = capability();
  return !(current < lowest) && !(highest < current);
}

template <class... Words>
bool reject(bool explain, const Words&... words) {
  if (explain) {
    TORCH_WARN(words...);
  }
  return false;
}

bool is_half(const Params& params) {
  return params.query.scalar_type() == at::kHalf || params.query.scalar_type() == at::kBFloat16;
}

// The alignment, in elements, that the loads of the kernel's matrix products need.
int64_t efficient_alignment(const Params& params) {
  const int major = capability().major;
  const bool half = is_half(params);
  const bool tensor_cores = major >= 8 || (major >= 7 && half);
  const int64_t minimum = major >= 8 ? 4 : 1;
  return tensor_cores ? std::max<int64_t>(minimum, half ? 8 : 4) : minimum;
}

} // namespace

// ---- filters of several operators

bool check_device(const Params& params, bool explain) {
  return params.query.is_cuda() ||
      reject(explain,
             "All tensors need to be on cuda device. Got query on device: ", params.query.device(),
             ", key on device: ", params.key.device(),
             ", value on device: ", params.value.device());
}

bool check_half_dtype(const Params& params, bool explain) {
  const bool bfloat16 = capability().major >= 8;
  return bfloat16 ? sdp::check_tensor_dtype(params, std::array{at::kHalf, at::kBFloat16}, explain)
                  : sdp::check_tensor_dtype(params, std::array{at::kHalf}, explain);
}

// ---- flash

bool check_flash_capability(const Params& /*params*/, bool explain) {
  const Capability here = capability();
  return is_between({8, 0}, {12, 1}) ||
      reject(explain,
             "Flash attention only supports gpu architectures in the range [sm80, sm121]. "
             "Attempting to run on a sm ",
             here.major, ".", here.minor, " gpu.");
}

bool check_flash_head_size(const Params& params, bool explain) {
  const auto query = params.query.sym_size(-1);
  const auto key = params.key.sym_size(-1);
  const auto value = params.value.sym_size(-1);
  return (query == key && query == value && query <= 256) ||
      reject(explain,
             "Flash attention requires q,k,v to have the same last dimension and to be less than "
             "or equal to 256. Got Query.size(-1): ",
             query, ", Key.size(-1): ", key, ", Value.size(-1): ", value, " instead.");
}

bool check_flash_nested_head_size(const Params& params, bool explain) {
  const auto query = params.query.sym_size(-1);
  const auto key = params.key.sym_size(-1);
  const auto value = params.value.sym_size(-1);
  return (query == key && query == value && query % 8 == 0 && query <= 256) ||
      reject(explain,
             "For NestedTensor inputs, Flash attention requires q,k,v to have the same last "
             "dimension and to be a multiple of 8 and less than or equal to 256. "
             "Got Query.size(-1): ",
             query, ", Key.size(-1): ", key, ", Value.size(-1): ", value, " instead.");
}

// The backward pass of large heads needs more shared memory than these GPUs have.
bool check_flash_backward(const Params& params, bool explain) {
  const bool has_small_shared_memory = is_between({8, 6}, {8, 9}) || is_between({12, 0}, {12, 1});
  if (!has_small_shared_memory || !sdp::input_requires_grad(params)) {
    return true;
  }
  const auto head = params.query.sym_size(-1);
  const Capability here = capability();
  return head <= 192 || (head > 224 && params.dropout <= 0.0) ||
      reject(explain,
             "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
             "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the range[sm86, "
             "sm89].Attempting to run with dropout set to: ",
             params.dropout, "and head_dim: ", head, " on a sm ", here.major, ".", here.minor,
             " gpu.");
}

// Flash aligns a causal mask at the lower right corner, scaled_dot_product_attention at the upper
// left.
bool check_flash_causal(const Params& params, bool explain) {
  if (!params.is_causal || params.query.is_nested() || params.key.is_nested()) {
    return true;
  }
  const auto queries = params.query.sym_size(-2);
  const auto keys = params.key.sym_size(-2);
  return queries == keys ||
      reject(explain,
             "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got "
             "seqlen_q: ",
             queries, " seqlen_k: ", keys,
             ". If you would like to use causal "
             "attention with non-square masks, please see CausalAttnMask.");
}

// ---- memory-efficient

bool check_efficient_capability(const Params& /*params*/, bool explain) {
  const Capability here = capability();
  return is_between({5, 0}, {12, 1}) ||
      reject(explain,
             "Mem Efficient Attention only supports gpu architectures in the range [sm50, sm121]. "
             "Attempting to run on a sm ",
             here.major, ".", here.minor, " gpu.");
}

bool check_efficient_head_size(const Params& params, bool explain) {
  const auto query = params.query.sym_size(-1);
  const auto key = params.key.sym_size(-1);
  const auto value = params.value.sym_size(-1);
  const auto alignment = efficient_alignment(params);
  return (query == key && query % alignment == 0 && query > 0 && value % alignment == 0 &&
          value > 0) ||
      reject(explain,
             "Mem efficient attention requires last dimension of inputs to be divisible by ",
             alignment, ". Got Query.size(-1): ", query, ", Key.size(-1): ", key,
             ", Value.size(-1): ", value, " instead.");
}

// Allocations are aligned to 256 bytes, so only the offset into them can be misaligned.
bool check_efficient_alignment(const Params& params, bool explain) {
  if (!sdp::has_only_dense_inputs(params) || capability().major < 8) {
    return true;
  }
  const int64_t bytes =
      efficient_alignment(params) * static_cast<int64_t>(params.query.element_size());
  const auto excess = [bytes](const at::Tensor& tensor) {
    return tensor.sym_storage_offset() * static_cast<int64_t>(tensor.element_size()) % bytes;
  };
  const auto aligned = [&excess](const at::Tensor& tensor) {
    return tensor.sym_numel() == 0 || excess(tensor) == 0;
  };
  return (aligned(params.query) && aligned(params.key) && aligned(params.value)) ||
      reject(explain,
             "Mem efficient attention on sm80 or newer requires q, k, and v storage offsets * "
             "element_size to be aligned to ",
             bytes, " bytes. Got query.storage_offset() * element_size % alignment_bytes: ",
             excess(params.query),
             ", key.storage_offset() * element_size % alignment_bytes: ", excess(params.key),
             ", value.storage_offset() * element_size % alignment_bytes: ", excess(params.value),
             ".");
}

bool check_efficient_dtype(const Params& params, bool explain) {
  const bool bfloat16 = capability().major >= 8;
  return bfloat16
      ? sdp::check_tensor_dtype(params, std::array{at::kHalf, at::kFloat, at::kBFloat16}, explain)
      : sdp::check_tensor_dtype(params, std::array{at::kHalf, at::kFloat}, explain);
}

// ---- cuDNN

bool check_cudnn_enabled(const Params& /*params*/, bool explain) {
  return at::globalContext().userEnabledCuDNNSDP() ||
      reject(explain, "cuDNN attention has been runtime disabled.");
}

bool check_cudnn_nested(const Params& params, bool explain) {
  static const bool enabled =
      c10::utils::check_env("TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED") == true;
  if (!sdp::has_for_nested_inputs(params)) {
    return true;
  }
  if (!enabled) {
    return reject(explain, "Experimental cuDNN SDPA nested tensor support is not enabled.");
  }
  const int major = capability().major;
  return major == 9 || major == 10 ||
      reject(explain, "cuDNN SDPA supports nested tensors on SM 9.0, SM 10.0.");
}

bool check_cudnn_deterministic(const Params& /*params*/, bool explain) {
  const auto& context = at::globalContext();
  return !context.deterministicAlgorithms() || context.deterministicAlgorithmsWarnOnly() ||
      reject(explain, "cuDNN SDPA is not deterministic.");
}

bool check_cudnn_capability(const Params& /*params*/, bool explain) {
  const Capability here = capability();
  return is_between({8, 0}, {12, 1}) ||
      reject(explain,
             "cuDNN MHA only supports gpu architectures in the range [sm80, sm121]. Attempting to "
             "run on a sm ",
             here.major, ".", here.minor, " gpu.");
}

bool check_cudnn_dropout(const Params& params, bool explain) {
  const double sixteenths = params.dropout * 16.0;
  return sixteenths == std::floor(sixteenths) ||
      reject(explain,
             "cuDNN dropout probability resolution is limited to 1/16.Use a dropout probability "
             "that is a multiple of 1/16 to select the cuDNN backend");
}

bool check_cudnn_shapes(const Params& params, bool explain) {
  const auto head_qk = params.query.sym_size(3);
  const auto head_v = params.value.sym_size(3);
  const Capability here = capability();
  const bool data_center = (here.major == 9 && here.minor == 0) || here.major == 10;
  // Head sizes of up to 128, and those of multi-head latent attention.
  const int64_t largest = data_center && head_qk == 192 && head_v == 128 ? 192 : 128;
  if (head_qk > largest || head_v > largest) {
    return reject(explain, "head_dim should be no more than ", largest);
  }
  if (head_qk % 8 != 0 || head_v % 8 != 0) {
    return reject(explain, "head_dim should be a multiple of 8");
  }
  if (params.key.sym_size(2) == 1) {
    return reject(explain, "cudnn SDPA does not support key/value sequence length 1.");
  }
  if (params.dropout != 0.0 && params.query.sym_size(2) == 1) {
    return reject(explain, "cudnn SDPA does not support query sequence length 1 with dropout.");
  }
  return true;
}

} // namespace anyrig::virtual_gpu
