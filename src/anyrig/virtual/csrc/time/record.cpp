#include "time/record.h"

#include "time/running_operator.h"

#include <algorithm>

namespace anyrig::virtual_gpu {

thread_local Origin Record::here;

void Record::begin() {
  first_ += static_cast<int64_t>(intervals_.size());
  intervals_.clear();
  dropped_any_ = false;
  on_.store(true, std::memory_order_relaxed);
}

int64_t Record::add(const Interval& interval) {
  if (!(interval.begin < interval.end)) {
    return -1;
  }
  if (intervals_.size() >= kMostIntervals) {
    intervals_.pop_front();
    ++first_;
    dropped_any_ = true;
  }
  intervals_.push_back(interval);
  return first_ + static_cast<int64_t>(intervals_.size()) - 1;
}

int32_t Record::number_of(HostLine& host) {
  if (host.track < 0) {
    host.track = static_cast<int32_t>(tracks_.size());
    tracks_.push_back({-1, -1, HostLines::in_backward()});
  }
  return host.track;
}

int32_t Record::number_of(std::string_view name) {
  const auto found = name_numbers_.find(name);
  if (C10_LIKELY(found != name_numbers_.end())) {
    return found->second;
  }
  const auto number = static_cast<int32_t>(names_.size());
  names_.emplace_back(name);
  return name_numbers_.emplace(name, number).first->second;
}

void Record::launched(HostLine& host, StreamTrack& track, double begin, double first, double end) {
  const auto name = RunningOperator::name();
  Interval interval;
  interval.begin = begin;
  interval.end = end;
  interval.track = number_of(host);
  interval.name = number_of(name.empty() ? "other work" : name);
  interval.origin = here;
  interval.kind = IntervalKind::Host;
  track.launch = {add(interval), first, here, interval.name};
  latest_host_.store(end, std::memory_order_relaxed);
}

void Record::expect_collective(StreamTrack& track) {
  track.collectives.push_back(track.launch);
}

void Record::worked(
    const c10::Stream& stream,
    StreamTrack& track,
    IntervalKind kind,
    double begin,
    double end,
    double bytes,
    int64_t flow) {
  track.collectives.clear(); // signals between ranks, which take no time
  add_work(stream, track, track.launch, kind, begin, end, {bytes, flow, 0});
}

void Record::communicated(
    const c10::Stream& stream,
    StreamTrack& track,
    double begin,
    double end,
    const CollectiveNote& note) {
  RecordedLaunch launch;
  if (!track.collectives.empty()) {
    launch = track.collectives.front();
    drop_collective(track);
  }
  add_work(stream, track, launch, IntervalKind::Collective, begin, end, note);
}

void Record::drop_collective(StreamTrack& track) {
  if (!track.collectives.empty()) {
    track.collectives.pop_front();
  }
}

void Record::add_work(
    const c10::Stream& stream,
    StreamTrack& track,
    const RecordedLaunch& launch,
    IntervalKind kind,
    double begin,
    double end,
    const CollectiveNote& note) {
  if (track.number < 0) {
    track.number = static_cast<int32_t>(tracks_.size());
    tracks_.push_back({stream.device_index(), stream.id(), false});
  }
  Interval interval;
  interval.begin = begin;
  interval.end = end;
  interval.bytes = note.bytes;
  interval.launch = launch.interval;
  interval.flow = note.flow;
  interval.track = track.number;
  interval.name = launch.name;
  interval.nodes = note.nodes;
  interval.origin = launch.origin;
  interval.kind = kind;
  interval.cause = begin == track.last_end ? Cause::Stream
      : begin == launch.moment             ? Cause::Launch
                                           : Cause::Moment;
  add(interval);
  track.last_end = std::max(track.last_end, end);
}

void Record::prolonged(StreamTrack& track, double begin, double end) {
  if (track.number < 0) {
    return; // the kernel ran before the record began
  }
  Interval interval;
  interval.begin = begin;
  interval.end = end;
  interval.launch = track.launch.interval;
  interval.track = track.number;
  interval.name = track.launch.name;
  interval.origin = track.launch.origin;
  interval.kind = IntervalKind::Kernel;
  interval.cause = Cause::Stream;
  add(interval);
  track.last_end = std::max(track.last_end, end);
}

void Record::waited(HostLine& host, double begin) {
  const auto name = RunningOperator::name();
  Interval interval;
  interval.begin = begin;
  interval.end = host.moment;
  interval.track = number_of(host);
  interval.name = number_of(name.empty() ? "synchronize" : name);
  interval.origin = here;
  interval.kind = IntervalKind::Wait;
  interval.cause = Cause::Moment;
  add(interval);
  latest_host_.store(host.moment, std::memory_order_relaxed);
}

} // namespace anyrig::virtual_gpu
