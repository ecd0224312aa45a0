// Activation functions.

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {
namespace {

OperatorRecords activation_records() {
  using enum c10::ScalarType;
  return {
      {{"gelu"}, {.kernel = "GeluCUDAKernelImpl", .refused = kAllButFloats}},
      {{"silu"}, {.kernel = "silu_cuda", .refused = kIntegral}},
      {{"elu"}, {.kernel = "elu_cuda", .refused = kAllButFloats}},
      {{"leaky_relu"}, {.kernel = "leaky_relu_cuda", .refused = kAllButFloats}},
      {{"softplus"}, {.kernel = "softplus_cuda", .refused = kAllButFloats}},
      {{"hardswish"}, {.kernel = "hardswish_cuda", .refused = kAllButFloats}},
      {{"hardshrink"}, {.kernel = "hardshrink_cuda", .refused = kAllButFloats}},
      {{"hardsigmoid"}, {.kernel = "hardsigmoid_cuda", .refused = kAllButFloats}},
      {{"softshrink"}, {.kernel = "softshrink_cuda", .refused = kAllButFloats}},
      {{"mish"}, {.kernel = "mish_cuda", .refused = kAllButFloats}},
      {{"glu"}, {.kernel = "glu_cuda", .refused = kAllButFloats}},
      {{"glu_backward"}, {.choose_layout = contiguous_layout}},
      {{"log_sigmoid_forward"}, {.kernel = "log_sigmoid_forward_cuda", .refused = kAllButFloats}},
      {{"threshold"}, {.kernel = "threshold_cuda", .refused = kBoolAndComplexes}},
      {{"_prelu_kernel"}, {.kernel = "prelu_cuda", .refused = kAllButFloats}},
      {{"rrelu_with_noise"},
       {.kernel = "rrelu_with_noise_out_cuda", .refused = kAllButFloats, .widened = {Half}}},
      {{"rrelu_with_noise_"}, {.widened = {Half}}},
      {{"relu"},
       {.dtype_rules =
            {dtype_in(
                 0, kReal, "clamp is not supported for complex types",
                 RefusalError::NotImplemented),
             dtype_in(0, kAllButBool, "Boolean inputs not supported for relu")}}},
      {{"hardtanh"},
       {.dtype_rules = refuse_complex(
            "clamp is not supported for complex types", RefusalError::NotImplemented)}},
      {{"sigmoid", "sigmoid_backward", "tanh_backward"}, {.widened = kComplexHalf}},
  };
}

const DeclaredRecords kActivationRecords(activation_records());

} // namespace

} // namespace anyrig::virtual_gpu
