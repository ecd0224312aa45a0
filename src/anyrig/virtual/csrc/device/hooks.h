// PyTorch's CUDA hooks, by which its other libraries query CUDA without linking to it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace anyrig::virtual_gpu {

// Replaces PyTorch's CUDA hooks by those of the virtual devices.
void install_hooks();

// The versions of CUDA and cuDNN of the build that PyTorch is or passes for (torch_build.py), as in
// CUDART_VERSION and CUDNN_VERSION. cuDNN's is 0 if unknown.
struct BuildVersions {
  long cuda = 0;
  long cudnn = 0;
};
void set_build_versions(BuildVersions versions);
BuildVersions build_versions();

// The plans that torch.backends.cuda.cufft_plan_cache counts, limits and clears. By default there
// are none.
struct FftPlanCache {
  int64_t (*count)(c10::DeviceIndex) = [](c10::DeviceIndex) { return int64_t{0}; };
  int64_t (*max_count)(c10::DeviceIndex) = [](c10::DeviceIndex) { return int64_t{0}; };
  void (*set_max_count)(c10::DeviceIndex, int64_t) = [](c10::DeviceIndex, int64_t) {};
  void (*clear)(c10::DeviceIndex) = [](c10::DeviceIndex) {};
};
void set_fft_plan_cache(const FftPlanCache& cache);

// Sets the function that returns the device of an address; none if it does not know the address.
// By default, each address belongs to the current device.
using DeviceOfAddress = std::optional<c10::DeviceIndex> (*)(const void* address);
void set_device_of_address(DeviceOfAddress find);

} // namespace anyrig::virtual_gpu
