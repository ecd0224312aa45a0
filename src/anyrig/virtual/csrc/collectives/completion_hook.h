// Calls the function that a program registered for completed collectives: ProcessGroup's
// _register_on_completion_hook.
//
//   a communicator's thread            the hook's own thread
//   end() ─────── queue ────────────>  calls the hook for one collective at a time, with the GIL,
//                                      which a communicator's thread never takes
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace anyrig::virtual_gpu {

class CompletionHook {
 public:
  using WorkInfoPointer = std::shared_ptr<c10d::WorkInfo>;
  using Hook = std::function<void(WorkInfoPointer)>;

  explicit CompletionHook(Hook hook);
  // Calls the hook for the collectives still in the queue, then ends the thread.
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  // Counts a collective as started. A call of `end` must follow; `info` is null if the collective
  // failed.
  void begin();
  void end(WorkInfoPointer info);
  // Waits until every started collective has ended and the hook has returned for it.
  void wait();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  Hook hook_;
  size_t pending_ = 0;
  std::deque<WorkInfoPointer> ended_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace anyrig::virtual_gpu
