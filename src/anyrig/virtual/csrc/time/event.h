// The state of a torch.cuda.Event.
#pragma once

#include "time/shared_mark.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace anyrig::virtual_gpu {

// Identifies a capture into a CUDA graph (time/capture.h).
using CaptureId = uint64_t;
inline constexpr CaptureId kNoCapture = 0;

// The time that an event recorded on a stream.
struct Event {
  double moment = 0; // seconds of this process's clock
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  CaptureId capture = kNoCapture; // of the stream when the event was recorded
  std::shared_ptr<SharedMark> shared; // null if the event is not shared between processes
};

// Records the event after all work launched on `stream` so far.
void mark(Event& event, const c10::Stream& stream);
// Returns the time at which the recorded work is done, even if another process recorded the event.
double done_at(const Event& event);
// Returns whether the event is done. The query takes host time (Clock::poll).
bool is_done(const Event& event);
void wait_for(const Event& event);

// Raises torch.AcceleratorError: "invalid resource handle" if the events belong to different
// devices; RuntimeError unless both are done.
double elapsed_milliseconds(const Event& start, const Event& end);

} // namespace anyrig::virtual_gpu
