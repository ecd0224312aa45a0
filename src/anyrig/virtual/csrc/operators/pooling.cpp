// Pooling.

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {
namespace {

OperatorRecords pooling_records() {
  return {
      {{"max_pool2d_with_indices"},
       {.kernel = "max_pool2d_with_indices_out_cuda_frame", .refused = kAllButFloats}},
      {{"max_pool3d_with_indices"},
       {.kernel = "max_pool3d_with_indices_out_frame", .refused = kAllButFloats}},
      {{"max_pool3d_with_indices_backward"},
       {.nondeterministic = "max_pool3d_with_indices_backward_cuda"}},
      {{"avg_pool2d"}, {.kernel = "avg_pool2d_out_cuda_frame", .refused = kAllButFloats}},
      {{"avg_pool3d"},
       {.kernel = "avg_pool3d_out_cuda", .refused = kAllButFloats, .widened = kHalves}},
      {{"avg_pool3d_backward"},
       {.nondeterministic = "avg_pool3d_backward_cuda", .widened = kHalves}},
      {{"_adaptive_avg_pool2d"}, {.kernel = "adaptive_avg_pool2d_cuda", .refused = kAllButFloats}},
      {{"_adaptive_avg_pool2d_backward"},
       {.nondeterministic = "adaptive_avg_pool2d_backward_cuda"}},
      {{"_adaptive_avg_pool3d"}, {.kernel = "adaptive_avg_pool3d_cuda", .refused = kAllButFloats}},
      {{"_adaptive_avg_pool3d_backward"},
       {.nondeterministic = "adaptive_avg_pool3d_backward_cuda"}},
      {{"adaptive_max_pool2d"}, {.kernel = "adaptive_max_pool2d_cuda", .refused = kAllButFloats}},
      {{"adaptive_max_pool2d_backward"}, {.nondeterministic = "adaptive_max_pool2d_backward_cuda"}},
      {{"adaptive_max_pool3d"}, {.kernel = "adaptive_max_pool3d_cuda", .refused = kAllButFloats}},
      {{"max_unpool2d"},
       {.kernel = "max_unpooling2d_forward_kernel",
        .refused = kAllButFloats,
        .choose_layout = contiguous_layout}},
      {{"max_unpool3d"},
       {.kernel = "max_unpooling3d_forward_kernel",
        .refused = kAllButFloats,
        .choose_layout = contiguous_layout}},
      {{"fractional_max_pool2d_backward"},
       {.nondeterministic = "fractional_max_pool2d_backward_cuda"}},
      {{"fractional_max_pool3d_backward"},
       {.nondeterministic = "fractional_max_pool3d_backward_cuda", .missing_meta = MissingMeta{1}}},
  };
}

const DeclaredRecords kPoolingRecords(pooling_records());

} // namespace

} // namespace anyrig::virtual_gpu
