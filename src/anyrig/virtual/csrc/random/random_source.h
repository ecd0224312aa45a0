// Where the random kernels draw from: the card, which decides the launch, and its generator.
#pragma once

#include "random/launch_geometry.h"
#include "random/philox.h"

#include <ATen/Generator.h>
#include <ATen/core/TensorBase.h>

#include <optional>

namespace anyrig::virtual_gpu {

// What launches on `device` depend on. A card of no known kind gets one wave of threads for every
// tensor: within a wave all cards give the same numbers.
Multiprocessors multiprocessors(c10::DeviceIndex device);

// Raises unless `device` is a card: a tensor of the CPU comes here too if the generator that it is to
// be filled from is a card's, as the dispatcher looks at both.
void check_drawn_on_card(c10::Device device);

// Takes the numbers of one launch from `generator`, or from the default one of `device`.
PhiloxPosition take_numbers(
    const std::optional<at::Generator>& generator,
    c10::DeviceIndex device,
    uint64_t increment);

// Lets the time pass that a kernel takes to read and write `bytes`.
void charge_kernel(c10::DeviceIndex device, int64_t bytes);

// A fake tensor passes for one of the device, but has neither memory nor numbers.
bool is_fake(const at::TensorBase& tensor);

} // namespace anyrig::virtual_gpu
