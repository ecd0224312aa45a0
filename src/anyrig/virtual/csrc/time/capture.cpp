#include "time/capture.h"

#include "device/cuda_error.h"
#include "time/streams.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

namespace anyrig::virtual_gpu {
namespace {

using StreamName = std::pair<c10::DeviceIndex, c10::StreamId>;

StreamName name_of(const c10::Stream& stream) {
  return {stream.device_index(), stream.id()};
}

struct Capture {
  StreamName origin;
  CaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  // Its streams, and whether their latest work has been joined.
  std::map<StreamName, bool> joined;
};

struct Captures {
  std::mutex mutex;
  std::map<CaptureId, Capture> by_id;
  std::map<StreamName, CaptureId> by_stream;

  static Captures& get() {
    static auto* captures = new Captures(); // streams are used while the process ends
    return *captures;
  }

  Capture* find(CaptureId id) {
    const auto found = by_id.find(id);
    return found == by_id.end() ? nullptr : &found->second;
  }

  CaptureId id_of(const StreamName& stream) {
    const auto found = by_stream.find(stream);
    return found == by_stream.end() ? kNoCapture : found->second;
  }

  void invalidate(CaptureId id) {
    if (Capture* capture = find(id)) {
      capture->valid = false;
    }
  }
};

thread_local bool relaxed_calls = false;

// Invalidates the captures that `matches` returns true for, then raises if there were any.
template <class Matches>
void invalidate_captures(Matches matches) {
  auto& captures = Captures::get();
  bool found_any = false;
  {
    std::lock_guard<std::mutex> guard(captures.mutex);
    for (auto& [id, capture] : captures.by_id) {
      if (matches(capture)) {
        capture.valid = false;
        found_any = true;
      }
    }
  }
  if (found_any) {
    raise_cuda_error(CudaError::CaptureUnsupported);
  }
}

} // namespace

namespace detail {

std::atomic<int> captures_underway{0};

CaptureId find_capture(const c10::Stream& stream) {
  auto& captures = Captures::get();
  std::lock_guard<std::mutex> guard(captures.mutex);
  return captures.id_of(name_of(stream));
}

} // namespace detail

CaptureId new_capture_id() {
  static std::atomic<CaptureId> next{1};
  return next++;
}

void begin_capture(CaptureId id, const c10::Stream& stream, CaptureMode mode) {
  auto& captures = Captures::get();
  const auto name = name_of(stream);
  std::lock_guard<std::mutex> guard(captures.mutex);
  if (captures.id_of(name) != kNoCapture) {
    raise_cuda_error(CudaError::IllegalState);
  }
  captures.by_id[id] = {name, mode, std::this_thread::get_id(), true, {{name, true}}};
  captures.by_stream[name] = id;
  ++detail::captures_underway;
  Clock::get().begin_meter(stream);
}

void end_capture(CaptureId id) {
  auto& captures = Captures::get();
  std::lock_guard<std::mutex> guard(captures.mutex);
  const auto found = captures.by_id.find(id);
  if (found == captures.by_id.end()) {
    raise_cuda_error(CudaError::IllegalState);
  }
  const Capture capture = std::move(found->second);
  captures.by_id.erase(found);
  for (const auto& [name, joined] : capture.joined) {
    captures.by_stream.erase(name);
  }
  --detail::captures_underway;
  if (!capture.valid) {
    raise_cuda_error(CudaError::CaptureInvalidated);
  }
  for (const auto& [name, joined] : capture.joined) {
    if (!joined && name != capture.origin) {
      raise_cuda_error(CudaError::CaptureUnjoined);
    }
  }
}

std::vector<c10::Stream> captured_streams(CaptureId id) {
  auto& captures = Captures::get();
  std::lock_guard<std::mutex> guard(captures.mutex);
  std::vector<c10::Stream> streams;
  if (const Capture* capture = captures.find(id)) {
    for (const auto& [name, joined] : capture->joined) {
      streams.emplace_back(c10::Stream::UNSAFE, c10::Device(kDeviceType, name.first), name.second);
    }
  }
  return streams;
}

void note_captured_work(const c10::Stream& stream) {
  auto& captures = Captures::get();
  std::lock_guard<std::mutex> guard(captures.mutex);
  const auto name = name_of(stream);
  Capture* capture = captures.find(captures.id_of(name));
  if (capture == nullptr) {
    return;
  }
  if (!capture->valid) {
    raise_cuda_error(CudaError::CaptureInvalidated);
  }
  capture->joined[name] = false;
}

void check_not_captured(const c10::Stream& stream) {
  if (capture_of(stream) != kNoCapture) {
    invalidate_captures([name = name_of(stream)](const Capture& capture) {
      return capture.joined.count(name) > 0;
    });
  }
}

void check_device_not_captured(int device) {
  if (C10_UNLIKELY(is_capture_underway())) {
    invalidate_captures(
        [device](const Capture& capture) { return capture.origin.first == device; });
  }
}

void check_unsafe_call(const c10::Stream& stream) {
  // PyTorch makes the calls of captured streams in relaxed mode.
  if (C10_LIKELY(!is_capture_underway()) || relaxed_calls || capture_of(stream) != kNoCapture) {
    return;
  }
  invalidate_captures([](const Capture& capture) {
    return capture.mode == CaptureMode::Global ||
        (capture.mode == CaptureMode::ThreadLocal && capture.thread == std::this_thread::get_id());
  });
}

RelaxedCalls::RelaxedCalls() : previous_(relaxed_calls) {
  relaxed_calls = true;
}

RelaxedCalls::~RelaxedCalls() {
  relaxed_calls = previous_;
}

void check_not_captured(const Event& event) {
  if (C10_UNLIKELY(event.capture != kNoCapture)) {
    auto& captures = Captures::get();
    {
      std::lock_guard<std::mutex> guard(captures.mutex);
      captures.invalidate(event.capture);
    }
    raise_cuda_error(CudaError::CapturedEvent);
  }
}

void follow_event(const c10::Stream& stream, const Event& event) {
  if (C10_LIKELY(!is_capture_underway())) {
    return;
  }
  auto& captures = Captures::get();
  std::lock_guard<std::mutex> guard(captures.mutex);
  const auto name = name_of(stream);
  const CaptureId own = captures.id_of(name);
  Capture* capture = captures.find(event.capture);
  if (capture == nullptr) {
    if (own != kNoCapture) {
      captures.invalidate(own);
      raise_cuda_error(CudaError::CaptureIsolation);
    }
    return;
  }
  if (own != kNoCapture && own != event.capture) {
    captures.invalidate(own);
    captures.invalidate(event.capture);
    raise_cuda_error(CudaError::CaptureMerge);
  }
  if (stream.id() == kDefaultStream) {
    capture->valid = false;
    raise_cuda_error(CudaError::CaptureImplicit);
  }
  if (own == kNoCapture) {
    captures.by_stream[name] = event.capture;
    Clock::get().begin_meter(stream);
  }
  const StreamName source{event.device, event.stream};
  if (source != name) {
    capture->joined[source] = true;
    capture->joined[name] = false;
  }
}

} // namespace anyrig::virtual_gpu
