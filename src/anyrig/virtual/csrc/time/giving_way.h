// A thread that waits for a card lets the other threads of the program go on first.
//
//   on a card   thread 1  |launch|......... wait .........|
//               thread 2     |launch|......... wait .........|
//
// Python's threads share one line of the virtual clock (host_lines.h), and a wait takes no time
// outside: thread 1 would be through with it before thread 2, though ready, has launched anything,
// and thread 2 would launch behind the wait. So who waits gives way: until all other threads of
// Python are blocked, or wait for a later moment, or have come to the same one by launching. That
// lasts no longer than on a card, and never longer than a bound.
#pragma once

#include <sys/types.h>

#include <list>
#include <vector>

namespace anyrig::virtual_gpu {

// The threads that give way now. Nothing here locks: the clock's lock guards all of it.
class Waiters {
 public:
  struct Waiter {
    pid_t thread;
    double until; // seconds of the virtual clock
  };
  using Place = std::list<Waiter>::iterator;

  Place add(pid_t thread, double until) { return waiters_.insert(waiters_.end(), {thread, until}); }
  void remove(Place place) { waiters_.erase(place); }
  // Whether another one waits for an earlier moment, and so is to go on first.
  bool has_earlier(Place place) const;
  // Whether one of `threads` does not wait.
  bool lacks_any(const std::vector<pid_t>& threads) const;

 private:
  std::list<Waiter> waiters_;
};

// The other threads that Python knows, by the system's numbers; none where they cannot run while
// this one waits: it is the only one that Python started, it holds Python's lock, or it is none of
// Python's.
std::vector<pid_t> other_python_threads();

// Those of `threads` that run or could, so the system says. None where it does not tell.
std::vector<pid_t> those_that_run(const std::vector<pid_t>& threads);

pid_t system_thread();

} // namespace anyrig::virtual_gpu
