// PyTorch's CUDA hooks, by which its other libraries query CUDA without linking to it.

#include "device/hooks.h"

#include "collectives/live_groups.h"
#include "device/device.h"
#include "memory/memory.h"
#include "memory/pinned_memory.h"
#include "random/generator.h"
#include "time/capture.h"
#include "time/clock.h"

#include <ATen/detail/CUDAHooksInterface.h>

namespace anyrig::virtual_gpu {
namespace {

FftPlanCache fft_plan_cache;
DeviceOfAddress device_of_address = nullptr;

BuildVersions versions_of_build;

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}

  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasCUDA() const override { return device_count() > 0; }
  bool hasCUDART() const override { return true; }
  // torch.backends.cuda queries these libraries; the CPU's LAPACK computes for all of them.
  bool hasCuSOLVER() const override { return true; }
  bool hasMAGMA() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return has_context(device); }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  int getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(virtual_gpu::current_device());
  }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto previous = getCurrentDevice();
    if (device >= 0) {
      set_current_device(device);
    }
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    const int index = device < 0 ? virtual_gpu::current_device() : device;
    check_device_not_captured(index);
    join_collectives(static_cast<c10::DeviceIndex>(index));
    Clock::get().synchronize_device(index);
  }

  c10::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Device getDeviceFromPtr(void* address) const override {
    const auto device = device_of_address == nullptr ? std::nullopt : device_of_address(address);
    return {kDeviceType, device.value_or(getCurrentDevice())};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }

  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex device) const override {
    return fft_plan_cache.max_count(device);
  }
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex device, int64_t count) const override {
    fft_plan_cache.set_max_count(device, count);
  }
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex device) const override {
    return fft_plan_cache.count(device);
  }
  void cuFFTClearPlanCache(c10::DeviceIndex device) const override { fft_plan_cache.clear(device); }

  std::string showConfig() const override {
    return "  - virtual GPUs of anyrig, computed on the CPU\n";
  }
  long versionCUDART() const override { return versions_of_build.cuda; }
  long versionCuDNN() const override { return 0; }
  long versionRuntimeCuDNN() const override { return 0; }
};

} // namespace

void set_build_versions(BuildVersions versions) {
  versions_of_build = versions;
}

BuildVersions build_versions() {
  return versions_of_build;
}

void set_fft_plan_cache(const FftPlanCache& cache) {
  fft_plan_cache = cache;
}

void set_device_of_address(DeviceOfAddress find) {
  device_of_address = find;
}

void install_hooks() {
  // PyTorch created its hooks object during import and keeps references to it, so registering ours
  // now would have no effect (and registering a taken name aborts the process). Overwrite the
  // virtual table pointer of that object instead; both classes contain nothing else.
  static_assert(sizeof(Hooks) == sizeof(void*) && sizeof(at::CUDAHooksInterface) == sizeof(void*));
  static auto* hooks = new Hooks();
  auto& installed = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(&installed) = *reinterpret_cast<void**>(hooks);
}

} // namespace anyrig::virtual_gpu
