// The record of what the clock did: each interval in which a stream worked, or in which the host
// launched work or waited. Off until `begin`.
//
//   host       |launch|launch|..........wait...........|
//   cuda:0 0          |== mm ==|== relu ==|== copy ====|
//                     ▲ Launch ▲ Stream
//
// Each work has the cause of its start, so that a reader can go back from the end of a step to what
// it waited for, and from there on:
//   Stream   the work before it on its stream ended then
//   Launch   the host launched it then
//   Moment   something else ended then: work of another stream that it waits for, the kernel that
//            had the multiprocessors, the copy that had the link, the last rank of a collective
// Times are passed on and never computed anew, so what ended then has exactly this end.
//
// The clock's lock guards everything but `is_on`, `locate` and `latest_host_seconds`.
#pragma once

#include "time/host_lines.h"
#include "time/origin.h"

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace anyrig::virtual_gpu {

enum class IntervalKind : uint8_t { Kernel, Copy, Collective, Wait, Host };
enum class Cause : uint8_t { None, Stream, Launch, Moment };

struct Interval {
  double begin = 0; // seconds
  double end = 0;
  double bytes = -1; // -1: unknown
  int64_t launch = -1; // the number of the host's interval that launched it; -1: not recorded
  int64_t flow = -1; // equal for the ends of a copy and for the ranks of a collective
  int32_t track = 0;
  int32_t name = -1;
  int32_t nodes = 0; // of the ranks of a collective; 0: no collective
  Origin origin;
  IntervalKind kind = IntervalKind::Host;
  Cause cause = Cause::None;
};

// A launch of the host: its interval, when the work could start, and where the program was.
struct RecordedLaunch {
  int64_t interval = -1;
  double moment = -1;
  Origin origin;
  int32_t name = -1;
};

// What the record keeps for a stream.
struct StreamTrack {
  int32_t number = -1;
  double last_end = -1;
  RecordedLaunch launch; // the last one
  std::deque<RecordedLaunch> collectives; // launched and not yet run
};

// A collective, beyond its times.
struct CollectiveNote {
  double bytes = -1;
  int64_t flow = -1;
  int32_t nodes = 1; // on which its ranks are
};

// A stream of a device, or a thread of the host.
struct RecordedTrack {
  int32_t device = -1; // -1: the host
  int64_t stream = -1;
  bool in_backward = false; // a thread of the host that works for backward passes
};

class Record {
 public:
  // Begins with an empty record.
  void begin();
  void end() { on_.store(false, std::memory_order_relaxed); }
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  // Finds where the calling thread is, for what it launches next. The caller must hold no lock.
  void locate() {
    if (C10_UNLIKELY(is_on())) {
      here = find_origin();
    }
  }

  // The host launches work for a stream from `begin` to `end`; the first kernel can start at
  // `first`.
  void launched(HostLine& host, StreamTrack& track, double begin, double first, double end);
  // The last launch is that of a collective, which another thread may run later.
  void expect_collective(StreamTrack& track);
  // A stream works. The work is that of the last launch.
  void worked(
      const c10::Stream& stream,
      StreamTrack& track,
      IntervalKind kind,
      double begin,
      double end,
      double bytes,
      int64_t flow = -1);
  // A stream takes part in the first collective that it expects.
  void communicated(
      const c10::Stream& stream,
      StreamTrack& track,
      double begin,
      double end,
      const CollectiveNote& note);
  // The first collective that a stream expects takes no time, or was captured.
  void drop_collective(StreamTrack& track);
  // The last kernel of a stream takes longer.
  void prolonged(StreamTrack& track, double begin, double end);
  // The host, now at `host.moment`, has waited since `begin`.
  void waited(HostLine& host, double begin);

  // Returns a number for works that belong together.
  int64_t new_flow() { return next_flow_++; }

  double latest_host_seconds() const { return latest_host_.load(std::memory_order_relaxed); }
  // The number of the oldest interval that is kept.
  int64_t first() const { return first_; }
  // Whether older intervals were dropped.
  bool dropped_any() const { return dropped_any_; }
  const std::deque<Interval>& intervals() const { return intervals_; }
  const std::vector<RecordedTrack>& tracks() const { return tracks_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  // The oldest intervals are dropped, to bound the memory (96 bytes each).
  static constexpr size_t kMostIntervals = size_t{1} << 19;

  int64_t add(const Interval& interval);
  void add_work(
      const c10::Stream& stream,
      StreamTrack& track,
      const RecordedLaunch& launch,
      IntervalKind kind,
      double begin,
      double end,
      const CollectiveNote& note);
  int32_t number_of(HostLine& host);
  int32_t number_of(std::string_view name);

  static thread_local Origin here;

  std::atomic<bool> on_{false};
  std::atomic<double> latest_host_{0};
  std::deque<Interval> intervals_;
  int64_t first_ = 0;
  bool dropped_any_ = false;
  int64_t next_flow_ = 0;
  std::vector<RecordedTrack> tracks_;
  std::vector<std::string> names_;
  std::map<std::string, int32_t, std::less<>> name_numbers_;
};

} // namespace anyrig::virtual_gpu
