#ifdef USE_C10D_GLOO

#include "collectives/nan_check.h"

#include "device/device.h"
#include "dispatch/device_assert.h"

#include <ATen/ops/isnan.h>

namespace anyrig::virtual_gpu {

void check_nan(const at::Tensor& row, c10::DeviceIndex device) {
  if (!row.defined() || !row.is_floating_point()) {
    return;
  }
  const auto values = c10::isFloat8Type(row.scalar_type()) ? row.to(at::kFloat) : row;
  if (at::isnan(values).any().item<bool>()) {
    raise_device_assert(
        "this rank sends a tensor that contains NaN", "checkForNaN",
        c10::Device(kDeviceType, device));
  }
}

void check_nan(const Collective& collective, c10::DeviceIndex device) {
  if (collective.announcement.kind == CollectiveKind::AllReduce) {
    check_nan(collective.result, device);
    return;
  }
  const void* last = nullptr; // most collectives send the same row to all ranks
  for (const auto& row : collective.send_rows) {
    if (row.defined() && row.const_data_ptr() != last) {
      last = row.const_data_ptr();
      check_nan(row, device);
    }
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
