// The mark of an event that processes share: torch.cuda.Event(interprocess=True).
//
//   who records                                                   who waits
//   event ──────> | marks | seconds left | marks seen done | <────── event
//                          a file without a name
//
// Each process has a clock of its own, so what they share is no moment, but how long the marked
// work still took when it was marked. To another process it is done that much later than it first
// looks; and once one process knows it to be done, it is so for all.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace anyrig::virtual_gpu {

class SharedMark {
 public:
  // Nothing is marked yet, which is done.
  static std::shared_ptr<SharedMark> create();
  // That of another process, by its descriptor there. Raises torch.AcceleratorError, "invalid
  // resource handle", if the process has closed it or ended.
  static std::shared_ptr<SharedMark> open(int64_t process, int file);
  ~SharedMark();
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;

  // The descriptor by which others open it; -1 where it was opened.
  int file() const { return file_; }

  // What is marked now is done at `moment` of this process's clock.
  void set(double moment);
  // When what was marked last is done, by this process's clock.
  double moment();
  // Whether some process knows that it is done.
  bool was_seen_done();
  void note_done();

 private:
  struct Shared;

  SharedMark(Shared* shared, int file);

  Shared* const shared_;
  const int file_;
  std::mutex mutex_;
  int64_t known_marks_ = 0; // of which `moment_` is the last
  double moment_ = 0;
};

} // namespace anyrig::virtual_gpu
