// Loss functions.

#include "dispatch/operator_record.h"

#include <ATen/core/Reduction.h>

namespace anyrig::virtual_gpu {
namespace {

bool reduces_all(Arguments arguments) {
  return arguments[3].toInt() != at::Reduction::None;
}

// smooth_l1_loss(self, target, reduction, beta)
void check_beta(Arguments arguments) {
  TORCH_CHECK(
      arguments[3].toDouble() >= 0, "smooth_l1_loss does not support negative values for beta.");
}

OperatorRecords loss_records() {
  using enum c10::ScalarType;
  return {
      {{"mse_loss"}, {.kernel = "mse_cuda", .refused = kAllButFloats}},
      {{"mse_loss_backward"}, {.choose_layout = contiguous_layout}},
      {{"smooth_l1_loss"},
       {.kernel = "smooth_l1_cuda", .refused = kAllButFloats, .check_arguments = check_beta}},
      {{"huber_loss"}, {.kernel = "huber_cuda", .refused = kAllButFloats}},
      {{"binary_cross_entropy"},
       {.kernel = "binary_cross_entropy",
        .refused = kAllButFloats,
        .dtype_rules = {same_dtype(1, 0, "Found dtype {1} but expected {2}")}}},
      {{"multi_margin_loss"},
       {.kernel = "multi_margin_loss_cuda", .refused = kAllButFloats, .widened = kHalves}},
      {{"multi_margin_loss_backward", "multilabel_margin_loss_backward"},
       {.widened = kHalves, .missing_meta = MissingMeta{1}}},
      {{"multilabel_margin_loss_forward"},
       {.kernel = "multilabel_margin_loss_forward_kernel",
        .refused = kAllButFloats,
        .widened = kHalves}},
      {{"nll_loss_forward"},
       {.dtype_rules =
            {dtype_in(
                 1, {Long, Byte},
                 "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for '{1}'",
                 RefusalError::NotImplemented),
             same_dtype(2, 0, kFound)}}},
      {{"nll_loss2d_forward"},
       {.dtype_rules =
            {dtype_in(1, {Long, Byte}, "expected scalar type Long but found {1}"),
             same_dtype(2, 0, kFound)},
        .nondeterministic = "nll_loss2d_forward_out_cuda_template",
        .is_nondeterministic = reduces_all}},
      {{"_ctc_loss_backward"},
       {.nondeterministic = "ctc_loss_backward_gpu", .missing_meta = MissingMeta{1}}},
  };
}

const DeclaredRecords kLossRecords(loss_records());

} // namespace

} // namespace anyrig::virtual_gpu
