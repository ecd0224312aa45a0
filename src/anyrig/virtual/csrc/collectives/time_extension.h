// Extra time for the next collectives of a group: _add_ephemeral_timeout. The extra time is used up
// when the first collective that got it ends.
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

  // The extra time of one collective: `total` extends its timeout, and `owned` of it is used up
  // when the collective ends.
  struct Share {
    Milliseconds total{0};
    Milliseconds owned{0};
  };
  Share take_share() {
    std::lock_guard<std::mutex> guard(mutex_);
    const Share share{active_, active_ - owned_};
    owned_ = active_;
    return share;
  }

  void end_share(const Share& share) {
    std::lock_guard<std::mutex> guard(mutex_);
    active_ -= share.owned;
    owned_ -= share.owned;
  }

 private:
  std::mutex mutex_;
  Milliseconds active_{0};
  // The part of `active_` that is used up when a running collective ends.
  Milliseconds owned_{0};
};

} // namespace anyrig::virtual_gpu
