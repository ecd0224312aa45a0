#ifdef USE_C10D_GLOO

#include "collectives/completion_hook.h"

#include "collectives/gil.h"

#include <c10/util/Logging.h>

namespace anyrig::virtual_gpu {

CompletionHook::CompletionHook(Hook hook) : hook_(std::move(hook)), thread_([this] { loop(); }) {}

CompletionHook::~CompletionHook() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  WithoutGil without_gil;
  thread_.join();
}

void CompletionHook::begin() {
  std::lock_guard<std::mutex> guard(mutex_);
  ++pending_;
}

void CompletionHook::end(WorkInfoPointer info) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (info) {
    ended_.push_back(std::move(info));
  } else {
    --pending_;
  }
  changed_.notify_all();
}

void CompletionHook::wait() {
  WithoutGil without_gil;
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return pending_ == 0; });
}

void CompletionHook::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !ended_.empty(); });
    if (ended_.empty()) {
      return;
    }
    auto info = std::move(ended_.front());
    ended_.pop_front();
    lock.unlock();
    try {
      hook_(std::move(info));
    } catch (const std::exception& error) {
      // ProcessGroupNCCL would end the process.
      LOG(ERROR) << "The on-completion hook failed: " << error.what();
    }
    lock.lock();
    --pending_;
    changed_.notify_all();
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
