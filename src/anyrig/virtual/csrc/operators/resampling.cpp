// Resizing, sampling at grids, padding, and columns of images.

#include "dispatch/operator_record.h"

namespace anyrig::virtual_gpu {
namespace {

OperatorRecords resampling_records() {
  using enum c10::ScalarType;
  return {
      {{"upsample_nearest2d"},
       {.kernel = "upsample_nearest2d_out_frame", .refused = {Bool, Char, Short, Int, Long}}},
      {{"upsample_linear1d_backward"}, {.nondeterministic = "upsample_linear1d_backward_out_cuda"}},
      {{"upsample_bilinear2d"},
       {.kernel = "upsample_bilinear2d_out_frame", .refused = kAllButFloats}},
      {{"upsample_bilinear2d_backward"},
       {.nondeterministic = "upsample_bilinear2d_backward_out_cuda"}},
      {{"_upsample_bilinear2d_aa"},
       {.kernel = "upsample_bilinear2d_out_frame", .refused = {Byte}, .widened = kHalves}},
      {{"_upsample_bilinear2d_aa_backward"},
       {.nondeterministic = "upsample_bilinear2d_aa_backward_out_cuda", .widened = kHalves}},
      {{"upsample_bicubic2d"},
       {.kernel = "upsample_bicubic2d_out_frame", .refused = kAllButFloats}},
      {{"upsample_bicubic2d_backward"},
       {.nondeterministic = "upsample_bicubic2d_backward_out_cuda"}},
      {{"_upsample_bicubic2d_aa"}, {.widened = kHalves}},
      {{"_upsample_bicubic2d_aa_backward"},
       {.nondeterministic = "upsample_bicubic2d_aa_backward_out_cuda", .widened = kHalves}},
      {{"upsample_trilinear3d_backward"},
       {.nondeterministic = "upsample_trilinear3d_backward_out_cuda"}},
      {{"grid_sampler_2d"},
       {.kernel = "grid_sampler_2d_cuda",
        .refused = kAllButFloats,
        .dtype_rules = {same_dtype(1, 0, kFound)}}},
      {{"grid_sampler_2d_backward"}, {.nondeterministic = "grid_sampler_2d_backward_cuda"}},
      {{"grid_sampler_3d"},
       {.kernel = "grid_sampler_3d_cuda",
        .refused = kAllButFloats,
        .dtype_rules = {same_dtype(1, 0, kFound)}}},
      {{"grid_sampler_3d_backward"}, {.nondeterministic = "grid_sampler_3d_backward_cuda"}},
      {{"reflection_pad1d"}, {.kernel = "reflection_pad1d_out", .refused = kBool}},
      {{"reflection_pad1d_backward"}, {.nondeterministic = "reflection_pad1d_backward_out_cuda"}},
      {{"reflection_pad2d"},
       {.kernel = "reflection_pad2d_out_template",
        .refused = kBool,
        .choose_layout = contiguous_layout}},
      {{"reflection_pad2d_backward", "reflection_pad3d", "replication_pad2d", "replication_pad3d"},
       {.choose_layout = contiguous_layout}},
      {{"reflection_pad3d_backward"},
       {.nondeterministic = "reflection_pad3d_backward_out_cuda",
        .choose_layout = contiguous_layout}},
      {{"replication_pad1d_backward"}, {.nondeterministic = "replication_pad1d_backward_cuda"}},
      {{"replication_pad2d_backward"},
       {.nondeterministic = "replication_pad2d_backward_cuda", .choose_layout = contiguous_layout}},
      {{"replication_pad3d_backward"},
       {.nondeterministic = "replication_pad3d_backward_cuda", .choose_layout = contiguous_layout}},
      {{"im2col"}, {.kernel = "im2col_out_cuda", .refused = kWholeNumbers}},
  };
}

const DeclaredRecords kResamplingRecords(resampling_records());

} // namespace

} // namespace anyrig::virtual_gpu
