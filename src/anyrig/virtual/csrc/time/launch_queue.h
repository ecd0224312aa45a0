// The launches that a stream holds: where it is full, the host waits before it launches more.
//
//   host     |launch|launch|launch|... waits ...|launch|... waits ...|launch|
//   stream   |========= kernel =========|========= kernel =========|====
//
// So a host that never synchronizes is not arbitrarily far ahead of the GPU, and neither is memory
// that other streams must finish with before it is used again.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace anyrig::virtual_gpu {

class LaunchQueue {
 public:
  // Not documented; about a thousand for each stream were measured
  // (https://stackoverflow.com/questions/53970187).
  static constexpr size_t kMost = 1024;

  // Returns the time from which the stream holds one more.
  double room_at() const { return ends_[next_]; }
  // Adds launches, the work of which ends at `end`.
  void add(double end, double launches) {
    const size_t count = std::min(static_cast<size_t>(launches), kMost);
    for (size_t i = 0; i < count; ++i) {
      ends_[next_] = end;
      next_ = (next_ + 1) % kMost;
    }
  }

 private:
  std::array<double, kMost> ends_{}; // the oldest first, from `next_` on
  size_t next_ = 0;
};

} // namespace anyrig::virtual_gpu
