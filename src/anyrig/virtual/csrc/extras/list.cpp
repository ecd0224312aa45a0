// The list of extras.

#include "extra.h"
#include "extras/fft/fft_plans.h"
#include "extras/narrow_products.h"
#include "extras/rpc/tensorpipe.h"
#include "extras/scaled_products/scaled_products.h"
#include "extras/sparsity/semi_structured.h"
#include "extras/symmetric/bindings.h"

namespace anyrig::virtual_gpu {

const std::vector<Extra>& extras() {
  static const std::vector<Extra> list = {
      {.name = "fft", .records = {fft_records}, .install = install_fft_plans},
      {.name = "narrow_products", .records = {narrow_product_records}},
      {.name = "rpc", .install = install_tensorpipe},
      {.name = "scaled_products", .records = {scaled_product_records, scaled_group_records}},
      {.name = "sparsity", .records = {semi_structured_records, pruning_records}},
      {.name = "symmetric", .bind = bind_symmetric_memory},
  };
  return list;
}

} // namespace anyrig::virtual_gpu
