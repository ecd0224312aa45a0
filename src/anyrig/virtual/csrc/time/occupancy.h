// The schedule of a resource that serves one operation at a time: a GPU's multiprocessors, or one
// direction of a link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace anyrig::virtual_gpu {

// Work takes the first gap that is large enough, not the end of the queue: a copy that waits for
// its stream does not delay a later copy that is ready.
class Occupancy {
 public:
  // Older gaps than those between the last `most_spans` are forgotten, to bound the memory and the
  // search.
  explicit Occupancy(size_t most_spans = 64) : most_spans_(most_spans) {}

  // Returns the first time from `ready` on at which the resource is free for `seconds`.
  double first_free(double ready, double seconds) const {
    double start = std::max(ready, gaps_known_from_);
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

  // Returns how long the resource is busy between `start` and `end`.
  double busy_within(double start, double end) const {
    double busy = 0;
    for (const auto& span : spans_) {
      busy += std::max(0.0, std::min(end, span.end) - std::max(start, span.start));
    }
    return busy;
  }

  // Returns how long work takes that starts at `start` and would take `seconds` alone, if it gets
  // only 1 - `share` of the speed while this resource is busy.
  double slowed(double start, double seconds, double share) const {
    double now = start;
    double left = seconds;
    for (const auto& span : spans_) {
      if (span.end <= now) {
        continue;
      }
      const double before = std::max(0.0, span.start - now);
      if (left <= before) {
        break;
      }
      left -= before;
      now = std::max(now, span.start);
      const double done = (span.end - now) * (1 - share);
      if (left <= done) {
        return now - start + left / (1 - share);
      }
      left -= done;
      now = span.end;
    }
    return now - start + left;
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
    if (spans_.size() > most_spans_) { // half of them at once, since each removal moves the others
      const auto kept = spans_.begin() + most_spans_ / 2;
      gaps_known_from_ = std::prev(kept)->end;
      spans_.erase(spans_.begin(), kept);
    }
  }

  // Forgets the gaps before `moment`, when no work will be ready any more.
  void forget_before(double moment) {
    gaps_known_from_ = std::max(gaps_known_from_, moment);
    const auto kept = std::find_if(
        spans_.begin(), spans_.end(), [&](const Span& span) { return span.end > moment; });
    spans_.erase(spans_.begin(), kept);
  }

 private:
  struct Span {
    double start;
    double end;
  };

  size_t most_spans_;
  std::vector<Span> spans_; // in order, not touching
  double gaps_known_from_ = 0;
};

} // namespace anyrig::virtual_gpu
