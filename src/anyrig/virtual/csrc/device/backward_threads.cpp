#include "device/backward_threads.h"

#include "device/device.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace anyrig::virtual_gpu {

void settle_backward_threads() {
  if (forked_after_use()) {
    return; // a child has none of its parent's threads
  }
  // The backwards below are to hold no Python object themselves.
  at::impl::ThreadLocalPythonObjects::set_state({});
  for (int i = 0; i < device_count(); ++i) {
    // A thread that takes up the next backward has dropped the one before. Without elements it
    // needs no memory, of which there may be none left.
    const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(i));
    const auto leaf = at::empty({0}, at::TensorOptions(device)).requires_grad_();
    leaf.clone().backward(at::empty({0}, at::TensorOptions(device)));
  }
}

} // namespace anyrig::virtual_gpu
