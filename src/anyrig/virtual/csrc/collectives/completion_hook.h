// What a program asked to be told of every collective that ended: ProcessGroup's
// _register_on_completion_hook.
//
//   a communicator's thread            the hook's own thread
//   ended() ────── queue ──────────>   calls it, one by one: it takes the GIL, which a
//                                      communicator's thread never does
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
  // Calls it for what has ended, and ends the thread.
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  // A collective is under way, which `ended` follows: with nothing, if it failed.
  void began();
  void ended(WorkInfoPointer info);
  // Waits until all that began has ended and the hook has heard of it.
  void wait();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  Hook hook_;
  size_t under_way_ = 0;
  std::deque<WorkInfoPointer> ended_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace anyrig::virtual_gpu
