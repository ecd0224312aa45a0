// When something is taken that serves one piece of work at a time: a card's multiprocessors, one
// direction of a link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace anyrig::virtual_gpu {

// Work takes the first gap that holds it, not the place behind all that was launched before: a copy
// that waits for its stream does not hold up a later one that is ready.
class Occupancy {
 public:
  // The first moment from `ready` on at which it is free for `seconds`.
  double first_free(double ready, double seconds) const {
    double start = std::max(ready, forgotten_until_);
    if (spans_.empty() || start >= spans_.back().end) {
      return start;
    }
    for (const auto& span : spans_) {
      if (start + seconds <= span.start) {
        break;
      }
      start = std::max(start, span.end);
    }
    return start;
  }

  void occupy(double start, double end) {
    if (end <= start) {
      return;
    }
    auto next = spans_.end();
    while (next != spans_.begin() && std::prev(next)->end >= start) {
      --next; // the first span that ends at `start` or later
    }
    auto last = next;
    for (; last != spans_.end() && last->start <= end; ++last) {
      start = std::min(start, last->start);
      end = std::max(end, last->end);
    }
    if (next != last) {
      *next = {start, end};
      spans_.erase(std::next(next), last);
    } else {
      spans_.insert(next, {start, end});
    }
    if (spans_.size() > kMostSpans) {
      forgotten_until_ = spans_.front().end;
      spans_.erase(spans_.begin());
    }
  }

 private:
  // Gaps further back are forgotten, so that neither memory nor the search grows.
  static constexpr size_t kMostSpans = 32;

  struct Span {
    double start;
    double end;
  };

  std::vector<Span> spans_; // in order; none touch
  double forgotten_until_ = 0;
};

} // namespace anyrig::virtual_gpu
