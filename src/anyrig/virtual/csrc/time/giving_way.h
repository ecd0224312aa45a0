// Lets the other threads of the program continue while one thread waits for a GPU.
//
//   on a GPU    thread 1  |launch|......... wait .........|
//               thread 2     |launch|......... wait .........|
//
// Python's threads share one timeline of the virtual clock (host_lines.h), and a virtual wait takes
// no real time: thread 1 would finish its wait before thread 2, though ready, has launched
// anything, and thread 2 would launch after the wait. So a waiting thread gives way until each
// other Python thread is blocked, waits for a later time, or has reached the same time by
// launching. It gives way no longer than it would wait on a GPU, and never longer than a fixed
// limit.
#pragma once

#include <sys/types.h>

#include <list>
#include <vector>

namespace anyrig::virtual_gpu {

// The threads that are giving way. Not thread-safe: the clock's lock guards it.
class Waiters {
 public:
  struct Waiter {
    pid_t thread;
    double until; // seconds of the virtual clock
  };
  using Place = std::list<Waiter>::iterator;

  Place add(pid_t thread, double until) { return waiters_.insert(waiters_.end(), {thread, until}); }
  void remove(Place place) { waiters_.erase(place); }
  // Returns whether another thread waits for an earlier time and should therefore continue first.
  bool has_earlier_waiter(Place place) const;
  // Returns whether any of `threads` is not waiting.
  bool any_not_waiting(const std::vector<pid_t>& threads) const;

 private:
  std::list<Waiter> waiters_;
};

// Returns the other threads that Python started and the main thread, by their kernel thread IDs.
// Returns none if no other thread can run during a wait: Python has started no thread, this thread
// holds the GIL, or this thread is not a Python thread. Takes the GIL.
std::vector<pid_t> other_python_threads();

// Returns the `threads` that are running or runnable according to the kernel; none on systems other
// than Linux.
std::vector<pid_t> running_threads(const std::vector<pid_t>& threads);

pid_t kernel_thread_id();
// Returns whether the thread of this process has ended; always true on systems other than Linux.
bool has_ended(pid_t thread);

} // namespace anyrig::virtual_gpu
