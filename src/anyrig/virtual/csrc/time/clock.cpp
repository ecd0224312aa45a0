// Longer than 400 lines because all functions change the same timelines under one lock.
#include "time/clock.h"

#include "time/cost/copy_cost.h"
#include "time/cost/cost.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

namespace anyrig::virtual_gpu {
namespace {

// The host's time for one cudaEventQuery.
constexpr double kPollSeconds = 1e-6;

// The longest real time that a thread gives way, and the interval at which it looks.
constexpr double kMaxGiveWaySeconds = 50e-3;
constexpr auto kGiveWayPollInterval = std::chrono::microseconds(50);

thread_local bool paused = false;

const GpuFacts& gpu_of(const c10::Stream& stream) {
  return devices()[stream.device_index()].gpu;
}

Link link_of(c10::Device source, c10::Device destination) {
  const bool from_device = source.type() == kDeviceType;
  const bool to_device = destination.type() == kDeviceType;
  if (from_device && to_device) {
    return link_between(devices()[source.index()], devices()[destination.index()]);
  }
  const auto& device = from_device ? source : destination;
  return {LinkKind::Pcie, copy_rate(devices()[device.index()].gpu, LinkKind::Pcie)};
}

// The link that collectives of a device use inside its node.
size_t link_of_collectives(const GpuFacts& gpu) {
  return static_cast<size_t>(gpu.fabric.empty() ? LinkKind::Pcie : LinkKind::Nvlink);
}

} // namespace

void DeviceTotals::add(const DeviceTotals& more) {
  compute_seconds += more.compute_seconds;
  for (size_t i = 0; i < kFamilies; ++i) {
    family_seconds[i] += more.family_seconds[i];
  }
  copy_seconds += more.copy_seconds;
  collective_seconds += more.collective_seconds;
  flops += more.flops;
  memory_bytes += more.memory_bytes;
}

Clock::Clock() : lines_(kMaxDevices) {}

Clock& Clock::get() {
  static auto* clock = new Clock(); // other threads may read it while the process ends
  return *clock;
}

bool Clock::charges() const {
  return enabled() && !paused;
}

double Clock::launch(StreamLine& line, double launch_seconds, double seconds_before, double count) {
  // Not by Python's threads, which share a timeline: one that waits would hold up the others.
  if (HostLines::in_backward()) {
    line.launched = std::max(line.launched, line.queue.room_at());
  }
  const bool records = record_.is_on();
  const double begin = records ? std::max(host_.current().moment, line.launched) : 0;
  line.launched = host_.work_after(line.launched, seconds_before + launch_seconds);
  const double first = line.launched;
  if (count > 1) {
    line.launched = host_.work_after(line.launched, (count - 1) * launch_seconds);
  }
  if (C10_UNLIKELY(records)) {
    record_.launched(host_.current(), line.track, begin, first, line.launched);
  }
  return std::max(line.done, first);
}

double Clock::launch(StreamLine& line, const HostCoefficients& host) {
  return launch(line, host.launch_seconds, 0, 1);
}

void Clock::slow_down_kernels(DeviceLine& device, double start, double end, double share) {
  // Kernels that were launched earlier are on the timeline already: the last takes the time that
  // all of them lose. Kernels that are launched later find the collective there (`slowed`).
  const double busy = device.multiprocessors.busy_within(start, end);
  if (busy == 0 || share == 0 || device.last_kernel == nullptr) {
    return;
  }
  const double lost = std::min(busy * share / (1 - share), (end - start) * share);
  const double done = device.last_kernel->done;
  device.multiprocessors.occupy(done, done + lost);
  device.totals.compute_seconds += lost;
  extend(*device.last_kernel, done, done + lost, 0);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.prolonged(device.last_kernel->track, done, done + lost);
  }
}

void Clock::extend(StreamLine& line, double start, double end, double launches) {
  line.done = std::max(line.done, end);
  line.busy += end - start;
  line.queue.add(end, launches);
}

bool Clock::add_to_meter(
    StreamLine& line,
    double seconds,
    double nodes,
    const DeviceTotals& totals) {
  if (C10_LIKELY(!line.metered.has_value())) {
    return false;
  }
  line.metered->seconds += seconds;
  line.metered->nodes += nodes;
  line.metered->totals.add(totals);
  return true;
}

void Clock::run(const c10::Stream& stream, c10::ArrayRef<Work> works) {
  if (!charges()) {
    return;
  }
  const GpuFacts& gpu = gpu_of(stream);
  record_.locate();
  std::lock_guard<std::mutex> guard(mutex_);
  double kernels = 0;
  DeviceTotals totals;
  for (const Work& work : works) {
    const double seconds = predictions_.seconds(gpu, work);
    totals.compute_seconds += seconds;
    totals.family_seconds[static_cast<size_t>(work.family)] += seconds;
    totals.flops += work.flops;
    totals.memory_bytes += work.bytes();
    kernels += work.kernels;
  }
  const double alone = totals.compute_seconds;
  const HostCoefficients& host = gpu.coefficients.host;
  const double before =
      host.operator_seconds + (HostLines::in_backward() ? host.backward_seconds : 0);
  DeviceLine& device = lines_[stream.device_index()];
  StreamLine& stream_line = device.of_stream(stream.id());
  const double ready = launch(stream_line, host.launch_seconds, before, kernels);
  if (add_to_meter(stream_line, alone, kernels, totals)) {
    return;
  }
  const double start = device.multiprocessors.first_free(ready, alone);
  const double seconds =
      device.collectives.slowed(start, alone, gpu.coefficients.collective.multiprocessor_share);
  // The last kernel cannot end before it is launched.
  const double end = std::max(start + seconds, stream_line.launched + seconds / kernels);
  device.multiprocessors.occupy(start, end);
  extend(stream_line, start, end, kernels);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.worked(
        stream, stream_line.track, IntervalKind::Kernel, start, end, totals.memory_bytes);
  }
  if (device.last_kernel == nullptr || end >= device.last_kernel->done) {
    device.last_kernel = &stream_line;
  }
  totals.compute_seconds = seconds;
  device.totals.add(totals);
  if (C10_UNLIKELY(log_.has_value())) {
    for (const Work& work : works) {
      log_->emplace_back(work, predictions_.seconds(gpu, work));
    }
  }
}

void Clock::run_for(const c10::Stream& stream, double seconds) {
  if (!charges()) {
    return;
  }
  record_.locate();
  std::lock_guard<std::mutex> guard(mutex_);
  StreamLine& stream_line = line(stream);
  const double start = launch(stream_line, gpu_of(stream).coefficients.host);
  if (!add_to_meter(stream_line, seconds, 1, {})) {
    extend(stream_line, start, start + seconds);
    if (C10_UNLIKELY(record_.is_on())) {
      record_.worked(stream, stream_line.track, IntervalKind::Kernel, start, start + seconds, -1);
    }
  }
}

void Clock::replay(const c10::Stream& stream, c10::ArrayRef<CapturedWork> captured) {
  if (!charges()) {
    return;
  }
  const GpuFacts& gpu = gpu_of(stream);
  record_.locate();
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceLine& device = lines_[stream.device_index()];
  StreamLine& stream_line = device.of_stream(stream.id());
  const double ready = launch(stream_line, gpu.coefficients.host);
  // The captured streams run at the same time, but the kernels of one GPU do not.
  double longest = 0, computing = 0, nodes = 0, bytes = 0;
  for (const CapturedWork& work : captured) {
    longest = std::max(longest, work.seconds);
    nodes = std::max(nodes, work.nodes);
    bytes += work.totals.memory_bytes;
    if (work.device == stream.device_index()) {
      computing += work.totals.compute_seconds;
    }
    lines_[work.device].totals.add(work.totals);
  }
  const double start = device.multiprocessors.first_free(ready, computing);
  const double slowed =
      device.collectives.slowed(start, computing, gpu.coefficients.collective.multiprocessor_share);
  device.totals.compute_seconds += slowed - computing;
  device.multiprocessors.occupy(start, start + slowed);
  const double waiting = nodes * gpu.coefficients.host.graph_node_seconds;
  const double end = start + std::max(longest, computing) + (slowed - computing) + waiting;
  extend(stream_line, start, end);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.worked(stream, stream_line.track, IntervalKind::Kernel, start, end, bytes);
  }
  if (device.last_kernel == nullptr || end >= device.last_kernel->done) {
    device.last_kernel = &stream_line;
  }
}

void Clock::copy(c10::Device source, c10::Device destination, double bytes, CopyOptions options) {
  if (!charges()) {
    return;
  }
  const auto device_index = source.type() == kDeviceType ? source.index() : destination.index();
  const GpuFacts& gpu = devices()[device_index].gpu;
  const Link link = link_of(source, destination);
  const double seconds = copy_seconds(gpu, link, bytes, options.is_pageable);
  const auto kind = static_cast<size_t>(link.kind);
  record_.locate();
  std::unique_lock<std::mutex> guard(mutex_);
  // Each end on a device has a stream and one direction of a link.
  struct End {
    c10::Stream id;
    DeviceLine* device;
    StreamLine* stream;
    Occupancy* link;
  };
  std::vector<End> ends;
  for (const bool leaves : {true, false}) {
    const auto device = leaves ? source : destination;
    if (device.type() == kDeviceType) {
      DeviceLine& line_of_device = lines_[device.index()];
      const auto stream = current_stream(device.index());
      ends.push_back(
          {stream, &line_of_device, &line(stream),
           &(leaves ? line_of_device.out : line_of_device.in)[kind]});
    }
  }
  double start = launch(*ends.front().stream, gpu.coefficients.host);
  for (const auto& end : ends) {
    DeviceTotals totals;
    totals.copy_seconds = seconds;
    if (add_to_meter(*end.stream, seconds, 1, totals)) {
      return;
    }
    start = std::max(start, end.stream->done);
    end.stream->launched = ends.front().stream->launched;
    end.stream->track.launch = ends.front().stream->track.launch;
  }
  // Repeat until the links of both ends are free at the same time.
  for (double asked = -1; asked != start;) {
    asked = start;
    for (const auto& end : ends) {
      start = end.link->first_free(start, seconds);
    }
  }
  const int64_t flow = record_.is_on() && ends.size() > 1 ? record_.new_flow() : -1;
  for (const auto& end : ends) {
    end.link->occupy(start, start + seconds);
    extend(*end.stream, start, start + seconds);
    if (C10_UNLIKELY(record_.is_on())) {
      record_.worked(
          end.id, end.stream->track, IntervalKind::Copy, start, start + seconds, bytes, flow);
    }
    end.device->totals.copy_seconds += seconds;
  }
  if (options.host_waits) {
    guard.unlock();
    wait_on_host(start + seconds);
  }
}

double Clock::launch_collective(const c10::Stream& stream) {
  record_.locate();
  std::lock_guard<std::mutex> guard(mutex_);
  StreamLine& stream_line = line(stream);
  if (!charges()) {
    return stream_line.done;
  }
  const double ready = launch(stream_line, gpu_of(stream).coefficients.host);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.expect_collective(stream_line.track);
  }
  return ready;
}

double Clock::run_collective(
    const c10::Stream& stream,
    double start,
    double seconds,
    Direction direction,
    const CollectiveNote& note) {
  if (!charges()) {
    return start;
  }
  const GpuFacts& gpu = gpu_of(stream);
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceLine& device = lines_[stream.device_index()];
  StreamLine& stream_line = device.of_stream(stream.id());
  DeviceTotals totals;
  totals.collective_seconds = seconds;
  if (add_to_meter(stream_line, seconds, 1, totals)) {
    record_.drop_collective(stream_line.track);
    return start + seconds;
  }
  if (seconds <= 0) { // unknown rates, or one rank
    extend(stream_line, start, start);
    record_.drop_collective(stream_line.track);
    return start;
  }
  // The ranks agree on `start`, so a collective whose link is busy takes longer instead of waiting.
  const size_t kind = link_of_collectives(gpu);
  double waits = 0;
  c10::SmallVector<Occupancy*, 2> links;
  if (direction != Direction::In) {
    links.push_back(&device.out[kind]);
  }
  if (direction != Direction::Out) {
    links.push_back(&device.in[kind]);
  }
  for (const Occupancy* link : links) {
    waits = std::max(waits, link->busy_within(start, start + seconds));
  }
  const double end = start + seconds + waits;
  for (Occupancy* link : links) {
    link->occupy(start, end);
  }
  slow_down_kernels(device, start, end, gpu.coefficients.collective.multiprocessor_share);
  device.collectives.occupy(start, end);
  extend(stream_line, start, end);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.communicated(stream, stream_line.track, start, end, note);
  }
  device.totals.collective_seconds += end - start;
  return end;
}

void Clock::collective(CollectiveKind kind, double bytes, c10::ArrayRef<c10::DeviceIndex> members) {
  const RunningOperator running(name_of(kind));
  std::vector<Place> places;
  double start = 0;
  for (const auto device : members) {
    places.push_back(place_of(device));
    start = std::max(start, launch_collective(current_stream(device)));
  }
  const double seconds = collective_seconds(kind, bytes, places);
  CollectiveNote note{bytes};
  with_record([&note](Record& record) { note.flow = record.is_on() ? record.new_flow() : -1; });
  for (const auto device : members) {
    run_collective(current_stream(device), start, seconds, Direction::Both, note);
  }
}

void Clock::synchronize(const c10::Stream& stream) {
  std::unique_lock<std::mutex> guard(mutex_);
  const double done = line(stream).done;
  guard.unlock();
  wait_on_host(done);
}

void Clock::synchronize_device(int device) {
  std::unique_lock<std::mutex> guard(mutex_);
  double done = 0;
  for (const auto& [id, stream_line] : lines_[device].streams) {
    done = std::max(done, stream_line.done);
  }
  guard.unlock();
  wait_on_host(done);
}

double Clock::done_at(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  return std::max(host_.current().moment, line(stream).done);
}

void Clock::wait_until(const c10::Stream& stream, double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  double& done = line(stream).done;
  done = std::max(done, moment);
}

void Clock::wait_on_host(double moment) {
  record_.locate();
  give_way(moment);
  wait_on_host_without_giving_way(moment);
}

void Clock::wait_on_host_without_giving_way(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  const double begin = host_.current().moment;
  host_.wait_until(moment);
  if (C10_UNLIKELY(record_.is_on())) {
    record_.waited(host_.current(), begin);
  }
}

void Clock::give_way(double moment) {
  if (!charges() || host_.in_backward()) {
    return;
  }
  auto others = other_python_threads();
  if (others.empty()) {
    return;
  }
  std::unique_lock<std::mutex> guard(mutex_);
  const auto& in_backward = host_.backward_threads();
  std::copy_if(
      in_backward.begin(), in_backward.end(), std::back_inserter(others),
      [](pid_t thread) { return thread != kernel_thread_id(); });
  const double ahead = std::min(moment - host_.current().moment, kMaxGiveWaySeconds);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(ahead);
  const auto place = waiters_.add(kernel_thread_id(), moment);
  while (host_.current().moment < moment && std::chrono::steady_clock::now() < end) {
    guard.unlock(); // a thread that wants the lock would appear blocked
    const auto running = running_threads(others);
    guard.lock();
    if (!waiters_.has_earlier_waiter(place) && !waiters_.any_not_waiting(running)) {
      break;
    }
    guard.unlock();
    std::this_thread::sleep_for(kGiveWayPollInterval);
    guard.lock();
  }
  waiters_.remove(place);
}

bool Clock::passed(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  return moment <= host_.current().moment;
}

bool Clock::poll(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  HostLine& host = host_.current();
  if (moment <= host.moment) {
    return true;
  }
  host.poll_seconds = host.moment == host.last_poll_end ? 2 * host.poll_seconds : kPollSeconds;
  const double begin = host.moment;
  host_.wait_until(std::min(moment, host.moment + host.poll_seconds));
  host.last_poll_end = host.moment;
  if (C10_UNLIKELY(record_.is_on())) {
    record_.waited(host, begin);
  }
  return false;
}

void Clock::begin_log() {
  std::lock_guard<std::mutex> guard(mutex_);
  log_.emplace();
}

std::vector<std::pair<Work, double>> Clock::end_log() {
  std::lock_guard<std::mutex> guard(mutex_);
  auto log = log_.value_or(std::vector<std::pair<Work, double>>());
  log_.reset();
  return log;
}

void Clock::begin_meter(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  line(stream).metered.emplace().device = stream.device_index();
}

CapturedWork Clock::end_meter(const c10::Stream& stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  return std::exchange(line(stream).metered, std::nullopt).value_or(CapturedWork());
}

double Clock::host_seconds() {
  std::lock_guard<std::mutex> guard(mutex_);
  return host_.current().moment;
}

double Clock::done_seconds() {
  std::lock_guard<std::mutex> guard(mutex_);
  double done = host_.current().moment;
  for (const auto& device : lines_) {
    for (const auto& [id, stream_line] : device.streams) {
      done = std::max(done, stream_line.done);
    }
  }
  return done;
}

std::vector<DeviceReading> Clock::read() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<DeviceReading> readings;
  for (int index = 0; index < device_count(); ++index) {
    DeviceReading reading{lines_[index].totals, {}};
    for (const auto& [id, stream_line] : lines_[index].streams) {
      reading.streams.push_back({id, stream_line.done, stream_line.busy});
    }
    std::sort(
        reading.streams.begin(), reading.streams.end(),
        [](const auto& one, const auto& other) { return one.id < other.id; });
    readings.push_back(std::move(reading));
  }
  return readings;
}

bool Clock::Pause::set(bool pauses) {
  return std::exchange(paused, pauses);
}

Clock::Pause::Pause() : previous_(paused) {
  paused = true;
}

Clock::Pause::~Pause() {
  paused = previous_;
}

} // namespace anyrig::virtual_gpu
