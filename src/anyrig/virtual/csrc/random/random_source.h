// The source of the random kernels' numbers: a device's launch configuration and its generator.
#pragma once

#include "random/launch_geometry.h"
#include "random/philox.h"

#include <ATen/Generator.h>
#include <ATen/core/TensorBase.h>

#include <optional>

namespace anyrig::virtual_gpu {

// Returns the properties of `device` that determine launches. A GPU of unknown type gets one wave
// of threads for every tensor: within one wave, all GPUs draw the same numbers.
Multiprocessors multiprocessors(c10::DeviceIndex device);

// Raises RuntimeError unless `device` is a virtual GPU. A CPU tensor reaches the random kernels
// when its generator is a GPU's, since the dispatcher considers both.
void check_drawn_on_gpu(c10::Device device);

// Reserves the numbers of one launch in `generator`, or in the default generator of `device`, and
// returns their start.
PhiloxPosition take_numbers(
    const std::optional<at::Generator>& generator,
    c10::DeviceIndex device,
    uint64_t increment);

// Charges the current stream for a kernel that reads and writes `bytes`.
void charge_kernel(c10::DeviceIndex device, int64_t bytes);

// Returns whether `tensor` is fake: on a device, but without memory or values.
bool is_fake(const at::TensorBase& tensor);

} // namespace anyrig::virtual_gpu
