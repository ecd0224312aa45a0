#include "time/profiler_events.h"

#include "device/device.h"
#include "time/clock.h"
#include "time/streams.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>

namespace anyrig::virtual_gpu {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

double moment_of(const ProfilerVoidEventStub* event) {
  return *static_cast<const double*>(event->get());
}

struct ProfilerEvents final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns)
      const override {
    const auto current = static_cast<c10::DeviceIndex>(current_device());
    if (device != nullptr) {
      *device = current;
    }
    *event = std::make_shared<double>(Clock::get().done_at(current_stream(current)));
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
  }

  // Returns microseconds.
  float elapsed(const ProfilerVoidEventStub* event, const ProfilerVoidEventStub* event2)
      const override {
    return static_cast<float>((moment_of(event2) - moment_of(event)) * 1e6);
  }

  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < device_count(); ++device) {
      const CurrentDevice guard(device);
      op(device);
    }
  }

  void synchronize() const override { Clock::get().synchronize_device(current_device()); }

  void mark(const char* /*name*/) const override {}
  void rangePush(const char* /*name*/) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
};

} // namespace

void install_profiler_events() {
  static auto* events = new ProfilerEvents(); // PyTorch keeps the pointer
  torch::profiler::impl::registerCUDAMethods(events);
}

} // namespace anyrig::virtual_gpu
