// The virtual clock: a time line for each stream of each device, and those of the host.
//
//   host     |launch|launch|..........synchronize.............|
//   cuda:0 0        |== matmul ==|== add ==|
//   cuda:0 1               |======== copy ========|
//   PCIe to cuda:0         |######################|
//
// The host only launches. Work starts when it has been launched, everything before it on its stream
// is done, and what it uses is free: the card's multiprocessors, which one kernel fills, or one
// direction of a link at each end of a copy. It takes the larger of FLOPs over rate and bytes over
// bandwidth. Times are seconds since the start of the process, unrelated to the time outside.
#pragma once

#include "device/device.h"
#include "time/collective_time.h"
#include "time/giving_way.h"
#include "time/host_lines.h"
#include "time/occupancy.h"
#include "time/links.h"
#include "time/work.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {

// What one device did until now. Seconds of copies and collectives may overlap with the others.
struct DeviceTotals {
  double compute_seconds = 0;
  double copy_seconds = 0;
  double collective_seconds = 0;
  double flops = 0;
  double memory_bytes = 0; // read and written by kernels
};

struct StreamReading {
  c10::StreamId id;
  double done_seconds; // the moment at which all its work is done
  double busy_seconds;
};

struct DeviceReading {
  DeviceTotals totals;
  std::vector<StreamReading> streams;
};

class Clock {
 public:
  static Clock& get();

  // Off: nothing takes time, and all work is done as soon as it is launched.
  void set_enabled(bool enabled) { enabled_ = enabled; }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Whether work of the calling thread is to be charged: not when off, not in a Pause.
  bool charges() const;

  // A kernel on `stream` that does `arithmetic` and moves `bytes` of the card's memory.
  void run(const c10::Stream& stream, const Arithmetic& arithmetic, double bytes);
  // Work on `stream` that takes `seconds`, and hardly any of the card.
  void run_for(const c10::Stream& stream, double seconds);
  // A copy of `bytes` between two devices, or a device and the host, on the current streams of its
  // ends; a host end has none. `host_waits` for its end: it does not if the memory is pinned and
  // the copy asynchronous.
  void copy(c10::Device source, c10::Device destination, double bytes, bool host_waits);

  // Collectives among processes. Each rank launches it on the stream that is to carry it out and
  // learns when it could start; all tell each other, and all finish alike:
  //
  //   const double ready = clock.launch_collective(stream);
  //   const double start = (the largest `ready` of all ranks);
  //   clock.run_collective(stream, start, collective_seconds(kind, bytes, ranks));
  //
  // So a rank that is late holds up the others, and their clocks come together. The first is for
  // the thread of the program, whose host line it moves on; the second for any thread.
  double launch_collective(const c10::Stream& stream);
  void run_collective(const c10::Stream& stream, double start, double seconds);
  // A collective among devices of this process, on their current streams.
  void collective(CollectiveKind kind, double bytes, c10::ArrayRef<c10::DeviceIndex> devices);

  void synchronize(const c10::Stream& stream);
  void synchronize_device(int device);
  // The moment at which everything launched on `stream` until now is done.
  double done_at(const c10::Stream& stream);
  // `stream` does nothing more before `moment`.
  void wait_until(const c10::Stream& stream, double moment);
  // The host does nothing more before `moment`; the other threads of the program go on meanwhile
  // (giving_way.h). Not for who holds a lock that they may want.
  void wait_on_host(double moment);
  // The same, and they do not.
  void wait_on_host_at_once(double moment);
  bool passed(double moment);
  // As `passed`, asked by the program, and asking takes time. As long as the host does nothing
  // else, each answer "no" takes twice as long as the one before: a loop that waits for the
  // answer "yes" ends after some twenty rounds, whether or not it sleeps in between, for that
  // sleep is not known here.
  bool poll(double moment);

  double host_seconds();
  std::vector<DeviceReading> read();

  // A captured stream does nothing: the seconds of what is launched there are summed up until
  // `end_meter`, which returns them.
  void begin_meter(const c10::Stream& stream);
  double end_meter(const c10::Stream& stream);

  // While one is alive on a thread, what the thread launches takes no time: who opens it charges
  // for all of it at once.
  class Pause {
   public:
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
    double launched = 0; // the moment of the last launch
    double busy = 0;
    std::optional<double> metered; // seconds, while the stream is captured
  };

  struct DeviceLine {
    std::unordered_map<c10::StreamId, StreamLine> streams;
    Occupancy multiprocessors;
    // By LinkKind, as of the whole device: one direction each.
    Occupancy out[kLinkKinds];
    Occupancy in[kLinkKinds];
    DeviceTotals totals;
  };

  Clock();
  StreamLine& line(const c10::Stream& stream) {
    return lines_[stream.device_index()].streams[stream.id()];
  }
  // The host launches work on `line`: after what other threads launched there.
  double launch(StreamLine& line);
  static void extend(StreamLine& line, double start, double end);
  // Whether the stream is captured; the meter then has the seconds.
  static bool meters(StreamLine& line, double seconds);
  // Returns when the calling thread may move the host's line to `moment`.
  void give_way(double moment);

  std::mutex mutex_;
  std::atomic<bool> enabled_{true};
  HostLines host_;
  Waiters waiters_;
  std::vector<DeviceLine> lines_;
};

} // namespace anyrig::virtual_gpu
