#include "time/clock.h"

#include "device/cuda_error.h"
#include "time/streams.h"

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// What the host spends to launch one kernel or copy: about 5 us on the systems PyTorch runs on.
constexpr double kLaunchSeconds = 5e-6;

// What cudaEventQuery takes.
constexpr double kPollSeconds = 1e-6;

double over(double quantity, double rate) {
  return rate > 0 ? quantity / rate : 0;
}

// Bytes per second between two ends; on one device each byte is read and written.
double bandwidth(c10::Device source, c10::Device destination) {
  const bool from_device = source.type() == kDeviceType;
  const bool to_device = destination.type() == kDeviceType;
  if (!from_device || !to_device) {
    const auto& device = from_device ? source : destination;
    return devices()[device.index()].rates.host_bytes_per_second;
  }
  const Rates& from = devices()[source.index()].rates;
  if (source.index() == destination.index()) {
    return from.memory_bytes_per_second / 2;
  }
  const Rates& to = devices()[destination.index()].rates;
  return std::min(from.link_bytes_per_second, to.link_bytes_per_second);
}

} // namespace

Clock& Clock::get() {
  static auto* clock = new Clock(); // read by threads that outlive static destruction
  return *clock;
}

void Clock::run(const c10::Stream& stream, double flops, double bytes, bool half_precision) {
  if (!enabled_) {
    return;
  }
  const Rates& rates = devices()[stream.device_index()].rates;
  const double rate = half_precision ? rates.half_flops_per_second : rates.flops_per_second;
  const double seconds = std::max(over(flops, rate), over(bytes, rates.memory_bytes_per_second));
  std::lock_guard<std::mutex> guard(mutex_);
  host_ += kLaunchSeconds;
  double& ready = line(stream);
  ready = std::max(ready, host_) + seconds;
}

void Clock::run_for(const c10::Stream& stream, double seconds) {
  if (!enabled_) {
    return;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  host_ += kLaunchSeconds;
  double& ready = line(stream);
  ready = std::max(ready, host_) + seconds;
}

void Clock::copy(c10::Device source, c10::Device destination, double bytes, bool asynchronous) {
  if (!enabled_) {
    return;
  }
  const double seconds = over(bytes, bandwidth(source, destination));
  const bool host_takes_part = source.type() != kDeviceType || destination.type() != kDeviceType;
  std::lock_guard<std::mutex> guard(mutex_);
  host_ += kLaunchSeconds;
  double end = host_;
  for (const auto device : {source, destination}) {
    if (device.type() == kDeviceType) {
      end = std::max(end, line(current_stream(device.index())));
    }
  }
  end += seconds;
  for (const auto device : {source, destination}) {
    if (device.type() == kDeviceType) {
      line(current_stream(device.index())) = end;
    }
  }
  if (host_takes_part && !asynchronous) {
    host_ = std::max(host_, end);
  }
}

void Clock::synchronize(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  host_ = std::max(host_, line(stream));
}

void Clock::synchronize_device(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [stream, ready] : lines_[device]) {
    host_ = std::max(host_, ready);
  }
}

double Clock::done_at(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  return std::max(host_, line(stream));
}

void Clock::wait_until(const c10::Stream& stream, double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  double& ready = line(stream);
  ready = std::max(ready, moment);
}

void Clock::wait_on_host(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  host_ = std::max(host_, moment);
}

bool Clock::passed(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  return moment <= host_;
}

bool Clock::poll(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (moment <= host_) {
    return true;
  }
  poll_seconds_ = host_ == last_poll_end_ ? 2 * poll_seconds_ : kPollSeconds;
  host_ = std::min(moment, host_ + poll_seconds_);
  last_poll_end_ = host_;
  return false;
}

double Clock::host_seconds() {
  std::lock_guard<std::mutex> guard(mutex_);
  return host_;
}

double elapsed_milliseconds(const Event& start, const Event& end) {
  constexpr double kMilliseconds = 1e3;
  if (start.device != end.device) {
    raise_cuda_error(CudaError::InvalidHandle);
  }
  if (!Clock::get().passed(std::max(start.moment, end.moment))) {
    raise_cuda_error(CudaError::NotReady);
  }
  return (end.moment - start.moment) * kMilliseconds;
}

} // namespace anyrig::virtual_gpu
