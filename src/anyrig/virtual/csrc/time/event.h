// What stands behind a torch.cuda.Event.
#pragma once

#include "time/shared_mark.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace anyrig::virtual_gpu {

// Names a capture into a CUDA graph (graphs/capture.h).
using CaptureId = uint64_t;
inline constexpr CaptureId kNoCapture = 0;

// A moment marked on a stream.
struct Event {
  double moment = 0; // seconds of this process's clock
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  CaptureId capture = kNoCapture; // of the stream, when it was marked
  std::shared_ptr<SharedMark> shared; // with other processes; null if it is not
};

// Marks all that was launched on `stream` until now.
void mark(Event& event, const c10::Stream& stream);
// The moment at which what it marks is done, whichever process marked it.
double done_at(const Event& event);
// Asked by the program, and asking takes time (Clock::poll).
bool is_done(const Event& event);
void wait_for(const Event& event);

// Raises torch.AcceleratorError: "invalid resource handle" if they are of two devices, "device not
// ready" unless the host has waited for both.
double elapsed_milliseconds(const Event& start, const Event& end);

} // namespace anyrig::virtual_gpu
