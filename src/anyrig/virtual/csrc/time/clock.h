// The virtual clock: a time line for each stream of each device and one for the host.
//
//   host     |launch|launch|..........synchronize.............|
//   cuda:0 0        |== matmul ==|== add ==|
//   cuda:0 1               |======== copy ========|
//
// The host only launches. Work starts when it has been launched and everything before it on its
// stream is done; it takes the larger of FLOPs over rate and bytes over bandwidth. Times are
// seconds since the start of the process, unrelated to the time that passes outside.
#pragma once

#include "device/device.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {

class Clock {
 public:
  static Clock& get();

  // Off: nothing takes time, and all work is done as soon as it is launched.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_; }

  // An operator on `stream`.
  void run(const c10::Stream& stream, double flops, double bytes, bool half_precision);
  // Work on `stream` that takes `seconds`, launch included.
  void run_for(const c10::Stream& stream, double seconds);
  // A copy of `bytes` between the current streams of its ends; a host end has no stream. Unless it
  // is `asynchronous`, the host waits for a copy it takes part in.
  void copy(c10::Device source, c10::Device destination, double bytes, bool asynchronous);

  void synchronize(const c10::Stream& stream);
  void synchronize_device(int device);
  // The moment at which everything launched on `stream` until now is done.
  double done_at(const c10::Stream& stream);
  // `stream` does nothing more before `moment`.
  void wait_until(const c10::Stream& stream, double moment);
  // The host does nothing more before `moment`.
  void wait_on_host(double moment);
  bool passed(double moment);
  // As `passed`, asked by the program, and asking takes time. As long as the host does nothing
  // else, each answer "no" takes twice as long as the one before: a loop that waits for the
  // answer "yes" ends after some twenty rounds, whether or not it sleeps in between, for that
  // sleep is not known here.
  bool poll(double moment);
  double host_seconds();

 private:
  using TimeLine = std::unordered_map<c10::StreamId, double>;

  double& line(const c10::Stream& stream) { return lines_[stream.device_index()][stream.id()]; }

  std::mutex mutex_;
  bool enabled_ = true;
  double host_ = 0;
  double last_poll_end_ = -1;
  double poll_seconds_ = 0;
  std::vector<TimeLine> lines_{kMaxDevices};
};

// A moment marked on a stream by torch.cuda.Event.
struct Event {
  double moment;
  c10::DeviceIndex device;
};

// Raises torch.AcceleratorError: "invalid resource handle" if they are of two devices, "device not
// ready" unless the host has waited for both.
double elapsed_milliseconds(const Event& start, const Event& end);

} // namespace anyrig::virtual_gpu
