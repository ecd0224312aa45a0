// The captures of streams into CUDA graphs, and the checks for calls that are invalid during a
// capture.
//
//   capture_begin            capture_end
//   capture_begin            capture_end
//        │                        │
//   ─────●────────────────────────●──────  the capture's first stream
//         \  waits for an event  /
//   ───────●────────────────────●────────  a stream that joins and must be joined back
//
// Rules and error codes: CUDA runtime API, cudaStreamBeginCapture and driver_types.h.
#pragma once

#include "time/clock.h"
#include "time/event.h"

#include <c10/core/Stream.h>

#include <atomic>
#include <vector>

namespace anyrig::virtual_gpu {

// The threads that may not make potentially unsafe calls, such as cudaMalloc
// (cudaStreamCaptureMode).
enum class CaptureMode { Global, ThreadLocal, Relaxed };

namespace detail {
extern std::atomic<int> captures_underway;
CaptureId find_capture(const c10::Stream& stream);
} // namespace detail

inline bool is_capture_underway() {
  return detail::captures_underway.load(std::memory_order_relaxed) > 0;
}

// Returns the capture that `stream` is part of, or kNoCapture.
inline CaptureId capture_of(const c10::Stream& stream) {
  return C10_UNLIKELY(is_capture_underway()) ? detail::find_capture(stream) : kNoCapture;
}

CaptureId new_capture_id();
// Starts a capture. Raises torch.AcceleratorError, as do all functions below, if the stream is
// already captured.
void begin_capture(CaptureId id, const c10::Stream& stream, CaptureMode mode);
// Ends the capture of all its streams. Raises if the capture was invalidated, or if a stream that
// joined was not joined back.
void end_capture(CaptureId id);

std::vector<c10::Stream> captured_streams(CaptureId id);

// Records that work was launched on `stream`. Raises if the stream's capture is invalid.
void note_captured_work(const c10::Stream& stream);

// Checks a call that makes the host wait for `stream` or queries its progress: during a capture,
// invalidates the capture and raises "operation not permitted when stream is capturing".
void check_not_captured(const c10::Stream& stream);
void check_device_not_captured(int device);
// Checks a potentially unsafe call of this thread with `stream` current.
void check_unsafe_call(const c10::Stream& stream);
// While an instance is alive on a thread, the thread may make potentially unsafe calls.
class RelaxedCalls {
 public:
  RelaxedCalls();
  ~RelaxedCalls();
  RelaxedCalls(const RelaxedCalls&) = delete;
  RelaxedCalls& operator=(const RelaxedCalls&) = delete;

 private:
  bool previous_;
};

// Checks a query of `event`: raises if the event was recorded in a capture.
void check_not_captured(const Event& event);

// Called when `stream` waits for `event`: adds the stream to the event's capture, if any. Raises if
// the stream cannot join it.
void follow_event(const c10::Stream& stream, const Event& event);

} // namespace anyrig::virtual_gpu
