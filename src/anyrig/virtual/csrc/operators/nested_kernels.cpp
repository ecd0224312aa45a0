#include "operators/nested_kernels.h"

#include "device/device.h"

#include <unordered_map>

namespace anyrig::virtual_gpu {

NestedKernel nested_kernel_of(const std::string& full_name) {
  using enum NestedKernel;
  // Meta tensors cannot form a nested tensor, so ShapeOnly has no twins of nested tensors.
  const NestedKernel own = shape_only() ? OfHost : OnTwins;
  // All other operators have one kernel for the CPU and CUDA in native_functions.yaml.
  static const std::unordered_map<std::string, NestedKernel> kernels = {
      {"bmm", own},
      {"to_padded_tensor", own},
      {"_nested_tensor_softmax_with_shape", own},
      {"_transform_bias_rescale_qkv", shape_only() ? WrittenHere : OnTwins},
      {"native_layer_norm", WrittenHere},
      {"native_layer_norm_backward", WrittenHere},
      {"_fused_sdp_choice", WrittenHere},
      {"_native_multi_head_attention", WrittenHere},
      {"_transformer_encoder_layer_fwd", WrittenHere},
  };
  const auto found = kernels.find(full_name);
  return found == kernels.end() ? OfHost : found->second;
}

} // namespace anyrig::virtual_gpu
