// The virtual clock: a timeline for each stream of each device, and for the host.
//
//   host     |launch|launch|..........synchronize.............|
//   cuda:0 0        |== matmul ==|== add ==|
//   cuda:0 1               |======== copy ========|
//   PCIe to cuda:0         |######################|
//
// The host only launches. Work starts when it has been launched, when all earlier work on its
// stream is done, and when its resource is free: a kernel needs the GPU's multiprocessors, which it
// fills, and a copy needs one direction of a link at each end. A collective needs its links and
// takes a part of the multiprocessors from kernels that run at the same time. The cost model
// (cost/cost.h) computes how long work takes from its record (work.h). Times are in seconds since
// the start of the process and independent of real time.
#pragma once

#include "device/device.h"
#include "time/collective_time.h"
#include "time/giving_way.h"
#include "time/host_lines.h"
#include "time/launch_queue.h"
#include "time/links.h"
#include "time/occupancy.h"
#include "time/predictions.h"
#include "time/record.h"
#include "time/work.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

// What one device has done so far. Copies and collectives may overlap with computation.
struct DeviceTotals {
  double compute_seconds = 0;
  std::array<double, kFamilies> family_seconds{}; // parts of it, without what collectives cost
  double copy_seconds = 0;
  double collective_seconds = 0;
  double flops = 0;
  double memory_bytes = 0; // read and written by kernels

  void add(const DeviceTotals& more);
};

// The work that was launched on one stream during a capture.
struct CapturedWork {
  c10::DeviceIndex device = 0;
  double seconds = 0; // from the start of the first to the end of the last
  double nodes = 0; // kernels, copies and collectives
  DeviceTotals totals;
};

struct StreamReading {
  c10::StreamId id;
  double done_seconds; // the time at which all its work is done
  double busy_seconds;
};

struct DeviceReading {
  DeviceTotals totals;
  std::vector<StreamReading> streams;
};

class Clock {
 public:
  static Clock& get();

  // If false, work takes no time and is done when it is launched.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Returns whether the calling thread's work takes time: the clock is enabled and no Pause is alive.
  bool charges() const;

  // Runs the kernels of one call on `stream`, one after the other.
  void run(const c10::Stream& stream, c10::ArrayRef<Work> works);
  // Runs work on `stream` that takes `seconds` but does not occupy the multiprocessors. The host
  // launches it once.
  void run_for(const c10::Stream& stream, double seconds);
  struct CopyOptions {
    // Whether the host waits until the copy is done. It does not for asynchronous copies from or to
    // pinned memory.
    bool host_waits = false;
    bool is_pageable = false; // whether the memory on the host is not pinned
  };
  // Copies `bytes` between two devices, or between a device and the host, on the current streams of
  // the devices.
  void copy(c10::Device source, c10::Device destination, double bytes, CopyOptions options);

  // Collectives between processes. Each rank calls `launch_collective` for its stream, which
  // returns the time at which the rank could start. The ranks exchange these times, so that all
  // finish at the same time:
  //
  //   const double ready = clock.launch_collective(stream);
  //   const double start = (the largest `ready` of all ranks);
  //   done = clock.run_collective(stream, start, collective_seconds(kind, bytes, ranks));
  //
  // A late rank therefore delays the others, which synchronizes the clocks. Call
  // `launch_collective` on the program's thread, whose host timeline it advances, and
  // `run_collective` on any thread.
  double launch_collective(const c10::Stream& stream);
  // Returns the time at which the collective is done on this device: later than `start` + `seconds`
  // if other work uses its links at the same time.
  enum class Direction { Both, Out, In };
  double run_collective(
      const c10::Stream& stream,
      double start,
      double seconds,
      Direction direction = Direction::Both,
      const CollectiveNote& note = {});
  // Runs a collective between devices of this process, on their current streams.
  void collective(CollectiveKind kind, double bytes, c10::ArrayRef<c10::DeviceIndex> devices);

  void synchronize(const c10::Stream& stream);
  void synchronize_device(int device);
  // Returns the time at which all work launched on `stream` so far is done.
  double done_at(const c10::Stream& stream);
  // Makes `stream` wait until `moment`.
  void wait_until(const c10::Stream& stream, double moment);
  // Makes the host wait until `moment`. Other threads of the program continue in the meantime
  // (giving_way.h), so the caller must not hold a lock that they may need.
  void wait_on_host(double moment);
  // Makes the host wait until `moment` without letting other threads continue first.
  void wait_on_host_without_giving_way(double moment);
  bool passed(double moment);
  // Like `passed`, but takes host time, for queries by the program. While the host does nothing
  // else, each query that returns false takes twice as long as the previous one, so a polling loop
  // ends after about twenty iterations. Sleeps between the queries take no virtual time.
  bool poll(double moment);

  double host_seconds();
  // Returns the time at which the host and all work launched so far are done.
  double done_seconds();
  std::vector<DeviceReading> read();

  // Called by operators that launch no work, such as views, but whose backward does.
  void note_node() {
    if (C10_UNLIKELY(record_.is_on())) {
      keep_origin_of_node();
    }
  }
  // The record of all intervals. `with_record` calls `use(record)` with the clock's lock held.
  const Record& record() const { return record_; }
  template <class Use>
  void with_record(Use use) {
    std::lock_guard<std::mutex> guard(mutex_);
    use(record_);
  }

  // Keeps a list of the works that are run from now on, and of their seconds.
  void begin_log();
  std::vector<std::pair<Work, double>> end_log();

  // While a stream is captured, its work does not run. The meter sums up the work launched there,
  // and `end_meter` returns the sum.
  void begin_meter(const c10::Stream& stream);
  CapturedWork end_meter(const c10::Stream& stream);
  // Runs a graph that captured this work, one entry per captured stream, on `stream`. The host
  // launches it once.
  void replay(const c10::Stream& stream, c10::ArrayRef<CapturedWork> captured);

  // While an instance is alive on a thread, the thread's launches take no time. The thread charges
  // the time of all of them separately.
  class Pause {
   public:
    // Sets whether the calling thread's launches take no time; returns whether they took none.
    static bool set(bool pauses);
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    bool previous_;
  };

 private:
  struct StreamLine {
    double done = 0;
    double launched = 0; // the time of the last launch
    double busy = 0;
    LaunchQueue queue;
    std::optional<CapturedWork> metered; // the meter, while the stream is captured
    StreamTrack track;
  };

  struct DeviceLine {
    std::unordered_map<c10::StreamId, StreamLine> streams; // none is ever removed
    // The last answer of `of_stream`: most works go to the stream of the work before.
    c10::StreamId last_id = 0;
    StreamLine* last_stream = nullptr;

    StreamLine& of_stream(c10::StreamId id) {
      if (C10_UNLIKELY(last_stream == nullptr || last_id != id)) {
        last_stream = &streams[id];
        last_id = id;
      }
      return *last_stream;
    }
    Occupancy multiprocessors;
    StreamLine* last_kernel = nullptr; // the stream of the kernel that ends last
    Occupancy collectives;
    // The links of the whole device in each direction, by LinkKind.
    Occupancy out[kLinkKinds];
    Occupancy in[kLinkKinds];
    DeviceTotals totals;
  };

  Clock();
  StreamLine& line(const c10::Stream& stream) {
    return lines_[stream.device_index()].of_stream(stream.id());
  }
  // Launches `count` kernels or copies on `line` from the host, after `seconds_before` of other
  // work of the host. Returns the earliest time at which the first can start.
  double launch(StreamLine& line, double launch_seconds, double seconds_before, double count);
  double launch(StreamLine& line, const HostCoefficients& host);
  // Makes kernels that overlap with a collective from `start` to `end` take longer.
  void slow_down_kernels(DeviceLine& device, double start, double end, double share);
  static void extend(StreamLine& line, double start, double end, double launches = 1);
  // Adds work to the stream's meter. Returns false if the stream is not captured.
  static bool add_to_meter(
      StreamLine& line,
      double seconds,
      double nodes,
      const DeviceTotals& totals);
  // Blocks until the calling thread may advance the host's timeline to `moment`.
  void give_way(double moment);

  std::mutex mutex_;
  std::atomic<bool> enabled_{true};
  HostLines host_;
  Predictions predictions_;
  std::optional<std::vector<std::pair<Work, double>>> log_;
  Record record_;
  Waiters waiters_;
  std::vector<DeviceLine> lines_;
};

} // namespace anyrig::virtual_gpu
