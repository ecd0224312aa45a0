// The time of an event that processes share: torch.cuda.Event(interprocess=True).
//
//   process that records                                     process that waits
//   event ──────> | marks | seconds left | marks seen done | <────── event
//                           an unnamed file
//
// Each process has its own clock, so processes share not a time but the seconds that the recorded
// work still took when the event was recorded. For another process, the work is done that much
// later than its first query. Once one process has seen that the work is done, it is done for all.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace anyrig::virtual_gpu {

class SharedMark {
 public:
  // Creates a mark that is done, like an event that was never recorded.
  static std::shared_ptr<SharedMark> create();
  // Opens the mark of another process by its descriptor there. Raises torch.AcceleratorError,
  // "invalid resource handle", if the process has closed it or ended.
  static std::shared_ptr<SharedMark> open(int64_t process, int file);
  ~SharedMark();
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;

  // Returns the descriptor by which other processes open the mark; -1 if this process opened it.
  int file() const { return file_; }

  // Records work that is done at `moment` of this process's clock.
  void set(double moment);
  // Returns when the last recorded work is done, on this process's clock.
  double moment();
  // Returns whether a process has seen that the work is done.
  bool was_seen_done();
  void set_seen_done();

 private:
  struct Shared;

  SharedMark(Shared* shared, int file);

  Shared* const shared_;
  const int file_;
  std::mutex mutex_;
  int64_t known_marks_ = 0; // the number of the mark whose time is `moment_`
  double moment_ = 0;
};

} // namespace anyrig::virtual_gpu
