// The time lines of the host's threads, which launch the work of the devices.
//
//   Python   |launch|launch|=== backward() ===================|launch|
//   cuda:0                 |launch|launch|launch|             '.. after all of these
//   cuda:1                 |launch|launch|launch|launch|
//
// Three rules, each a comparison:
// 1. All threads share one line, since Python's lock makes them take turns (while one waits for a
//    card, the others go on: giving_way.h), except
// 2. a thread inside a backward, which has a line of its own: PyTorch's engine launches from one
//    C++ thread a device. When it takes up a backward, it starts no earlier than the shared line.
// 3. The shared line, whenever it is used, comes after all that was launched in backwards. So what a
//    program launches after backward() comes after the backward. A second Python thread that
//    launches during the first one's backward is drawn along; it seldom matters, as both go on.
//
// Nothing here locks: the clock's lock guards all of it.
#pragma once

#include <cstdint>

namespace anyrig::virtual_gpu {

struct HostLine {
  double moment = 0; // seconds
  double last_poll_end = -1;
  double poll_seconds = 0;
};

class HostLines {
 public:
  // The line of the calling thread, brought up to date.
  HostLine& current();
  // Whether the calling thread has a line of its own now.
  static bool in_backward();
  // Moves the calling thread's line to `moment`, if it is not there yet.
  void wait_until(double moment);
  // Lets the calling thread work for `seconds`, not before `moment`. Returns when it is done.
  double work_after(double moment, double seconds);

 private:
  void note(const HostLine& line);

  HostLine shared_;
  double latest_in_backward_ = 0;
};

} // namespace anyrig::virtual_gpu
