// More time for the collectives of a group that come next, for once: _add_ephemeral_timeout. It is
// used up when the first collective that had it ends.
#pragma once

#include <chrono>
#include <mutex>

namespace anyrig::virtual_gpu {

class TimeExtension {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds more) {
    std::lock_guard<std::mutex> guard(mutex_);
    active_ += more;
  }

  // What a collective that begins now has: all that is active, of which its end takes `own` away.
  struct Share {
    Milliseconds all{0};
    Milliseconds own{0};
  };
  Share take() {
    std::lock_guard<std::mutex> guard(mutex_);
    const Share share{active_, active_ - owned_};
    owned_ = active_;
    return share;
  }

  void end(const Share& share) {
    std::lock_guard<std::mutex> guard(mutex_);
    active_ -= share.own;
    owned_ -= share.own;
  }

 private:
  std::mutex mutex_;
  Milliseconds active_{0};
  // The part of it that ends with a collective under way.
  Milliseconds owned_{0};
};

} // namespace anyrig::virtual_gpu
