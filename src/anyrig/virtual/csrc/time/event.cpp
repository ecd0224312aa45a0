#include "time/event.h"

#include "device/cuda_error.h"
#include "time/capture.h"
#include "time/clock.h"

#include <algorithm>

namespace anyrig::virtual_gpu {

void mark(Event& event, const c10::Stream& stream) {
  event.moment = Clock::get().done_at(stream);
  event.device = stream.device_index();
  event.stream = stream.id();
  event.capture = capture_of(stream);
  if (event.shared != nullptr) {
    event.shared->set(event.moment);
  }
}

double done_at(const Event& event) {
  return event.shared != nullptr ? event.shared->moment() : event.moment;
}

bool is_done(const Event& event) {
  auto& clock = Clock::get();
  const double moment = done_at(event);
  if (event.shared == nullptr) {
    return clock.poll(moment);
  }
  if (event.shared->was_seen_done()) {
    clock.wait_on_host_without_giving_way(moment); // it has passed for another process
    return true;
  }
  const bool done = clock.poll(moment);
  if (done) {
    event.shared->set_seen_done();
  }
  return done;
}

void wait_for(const Event& event) {
  Clock::get().wait_on_host(done_at(event));
  if (event.shared != nullptr) {
    event.shared->set_seen_done();
  }
}

double elapsed_milliseconds(const Event& start, const Event& end) {
  constexpr double kMilliseconds = 1e3;
  if (start.device != end.device) {
    raise_cuda_error(CudaError::InvalidHandle);
  }
  if (!Clock::get().passed(std::max(start.moment, end.moment))) {
    TORCH_CHECK(false, "Both events must be completed before calculating elapsed time.");
  }
  return (end.moment - start.moment) * kMilliseconds;
}

} // namespace anyrig::virtual_gpu
