// Operators that run in their own way on sparse and nested tensors.

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {
namespace {

OperatorRecords container_records() {
  return {
      {{"copy_", "copy_sparse_to_sparse_", "_to_copy", "_nested_tensor_size",
        "_nested_tensor_strides", "_nested_tensor_storage_offsets"},
       {.takes_any_device = true}},
      {{"to_padded_tensor", "_nested_tensor_softmax_with_shape"},
       {.nested = NestedKernel::OnTwins}},
      {{"_transform_bias_rescale_qkv"}, {.nested = NestedKernel::OnTwinsOrWrittenHere}},
      {{"_fused_sdp_choice", "_native_multi_head_attention", "_transformer_encoder_layer_fwd"},
       {.nested = NestedKernel::WrittenHere}},
  };
}

const DeclaredRecords kContainerRecords(container_records());

} // namespace

} // namespace anyrig::virtual_gpu
