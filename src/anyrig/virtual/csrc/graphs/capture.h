// Which streams are being captured into a CUDA graph, and what may not be done meanwhile.
//
//   capture_begin            capture_end
//        │                        │
//   ─────●────────────────────────●──────  the stream it began on
//         \  waits for an event  /
//   ───────●────────────────────●────────  a stream that joins, and must be joined again
//
// Rules and error numbers: CUDA runtime API, cudaStreamBeginCapture and driver_types.h.
#pragma once

#include "time/clock.h"
#include "time/event.h"

#include <c10/core/Stream.h>

#include <atomic>
#include <vector>

namespace anyrig::virtual_gpu {

// Which threads may not make calls that CUDA calls potentially unsafe, such as cudaMalloc.
enum class CaptureMode { Global, ThreadLocal, Relaxed };

namespace detail {
extern std::atomic<int> captures_underway;
CaptureId find_capture(const c10::Stream& stream);
} // namespace detail

inline bool is_capture_underway() {
  return detail::captures_underway.load(std::memory_order_relaxed) > 0;
}

// The capture that `stream` is part of, or kNoCapture.
inline CaptureId capture_of(const c10::Stream& stream) {
  return C10_UNLIKELY(is_capture_underway()) ? detail::find_capture(stream) : kNoCapture;
}

CaptureId new_capture_id();
// Raises torch.AcceleratorError, as do all below: here if the stream is captured already.
void begin_capture(CaptureId id, const c10::Stream& stream, CaptureMode mode);
// The streams are free again in any case. Raises if the capture was invalidated, or if a stream
// that joined it was not joined again.
void end_capture(CaptureId id);

std::vector<c10::Stream> captured_streams(CaptureId id);

// Work was launched on `stream`, which is part of a capture. Raises if that is invalid.
void note_captured_work(const c10::Stream& stream);

// What makes the host wait for `stream`, or asks how far it is: invalidates its capture and raises
// "operation not permitted when stream is capturing".
void check_not_captured(const c10::Stream& stream);
void check_device_not_captured(int device);
// A call that CUDA calls potentially unsafe, made by this thread with `stream` current.
void check_unsafe_call(const c10::Stream& stream);
// While one is alive on a thread, the thread may make such calls.
class RelaxedCalls {
 public:
  RelaxedCalls();
  ~RelaxedCalls();
  RelaxedCalls(const RelaxedCalls&) = delete;
  RelaxedCalls& operator=(const RelaxedCalls&) = delete;

 private:
  bool previous_;
};

// Asking an event that was recorded in a capture.
void check_not_captured(const Event& event);

// `stream` waits for `event`: may make it part of the event's capture.
void follow_event(const c10::Stream& stream, const Event& event);

} // namespace anyrig::virtual_gpu
