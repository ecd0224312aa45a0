// The timelines of the host's threads, which launch the work of the devices.
//
//   Python   |launch|launch|=== backward() ===================|launch|
//   cuda:0                 |launch|launch|launch|             '.. after all launches
//   cuda:1                 |launch|launch|launch|launch|         of the backward pass
//
// Three rules:
// 1. All threads share one timeline, since the GIL makes them take turns. While a thread waits for
//    a GPU, the other threads continue (giving_way.h).
// 2. A thread inside a backward pass has its own timeline, since PyTorch's engine launches from one
//    C++ thread per device. That timeline starts no earlier than the shared one.
// 3. Python code within a backward pass (functions of torch.autograd.Function, hooks, recomputed
//    checkpoints) needs the GIL: such launches of different threads take turns, too. Each takes the
//    first time from its thread's own on at which no other has the GIL: the threads come here in
//    the order of real time, which says nothing about the clock.
// 4. The shared timeline continues after all launches of backward passes, so launches after
//    backward() come after the backward pass. A second Python thread that launches during the
//    backward pass is delayed too; this seldom matters, as both threads continue to launch.
//
// Not thread-safe: the clock's lock guards it.
#pragma once

#include "time/occupancy.h"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace anyrig::virtual_gpu {

struct HostLine {
  double moment = 0; // seconds
  double last_poll_end = -1;
  double poll_seconds = 0;
  int track = -1; // its number in the record (record.h); -1 before its first interval
};

class HostLines {
 public:
  // Returns the calling thread's timeline, brought up to date.
  HostLine& current();
  // Returns whether the calling thread works for a backward pass and has its own timeline.
  static bool in_backward();
  // The threads that worked for backward passes, by their kernel thread IDs: PyTorch's engine
  // starts its own, which Python does not know.
  const std::vector<pid_t>& backward_threads() const { return backward_threads_; }
  // Advances the calling thread's timeline to `moment`, unless it is already later.
  void wait_until(double moment);
  // Makes the calling thread work for `seconds`, starting at `moment` or later. Returns the end.
  double work_after(double moment, double seconds);

 private:
  // More turns than one backward pass has, apart from those that follow each other.
  static constexpr size_t kMostTurns = 4096;

  void note_launch_time(const HostLine& line);
  void note_backward_thread();

  HostLine shared_;
  double latest_in_backward_ = 0;
  Occupancy lock_in_backward_{kMostTurns}; // Python's lock, by code within backward passes
  std::vector<pid_t> backward_threads_;
};

} // namespace anyrig::virtual_gpu
