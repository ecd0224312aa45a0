// The device guard, by which PyTorch switches devices and streams and records events.

#include "collectives/live_groups.h"
#include "device/device.h"
#include "device/gpu_trace.h"
#include "device/host_waits.h"
#include "device/override.h"
#include "memory/memory.h"
#include "time/capture.h"
#include "time/clock.h"
#include "time/event.h"
#include "time/streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace anyrig::virtual_gpu {
namespace {

using Tracer = c10::impl::PyInterpreterVTable;

Event* as_event(void* event) {
  return static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kDeviceType;

  c10::DeviceType type() const override { return kDeviceType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }

  c10::Device getDevice() const override {
    return {kDeviceType, static_cast<c10::DeviceIndex>(current_device())};
  }

  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < device_count()) {
      set_current_device(device.index());
    }
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(device.index(), high_priority ? -1 : 0);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }

  bool queryStream(const c10::Stream& stream) const override {
    check_not_captured(stream);
    return Clock::get().poll(Clock::get().done_at(stream));
  }

  bool isStreamCapturing(const c10::Stream& stream) const ANYRIG_OVERRIDE_FROM_2_12 {
    return capture_of(stream) != kNoCapture;
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    check_not_forked();
    check_not_captured(stream);
    note_host_wait(stream);
    Clock::get().synchronize(stream);
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_not_forked();
    const int index = device < 0 ? current_device() : device;
    check_device_not_captured(index);
    trace(&Tracer::trace_gpu_device_synchronization);
    join_collectives(static_cast<c10::DeviceIndex>(index));
    Clock::get().synchronize_device(index);
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Event();
      trace(&Tracer::trace_gpu_event_creation, *event);
    }
    mark(*as_event(*event), stream);
    trace(&Tracer::trace_gpu_event_record, *event, stream);
  }

  // Waiting for an event that was never recorded does nothing.
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      follow_event(stream, *as_event(event));
      Clock::get().wait_until(stream, done_at(*as_event(event)));
      trace(&Tracer::trace_gpu_event_wait, event, stream);
    }
  }

  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    check_not_captured(*as_event(event));
    return is_done(*as_event(event));
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      check_not_captured(*as_event(event));
      trace(&Tracer::trace_gpu_event_synchronization, event);
      wait_for(*as_event(event));
    }
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    return elapsed_milliseconds(*as_event(start), *as_event(end));
  }

  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    if (event != nullptr) {
      trace(&Tracer::trace_gpu_event_deletion, event);
    }
    delete as_event(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

} // namespace
} // namespace anyrig::virtual_gpu
