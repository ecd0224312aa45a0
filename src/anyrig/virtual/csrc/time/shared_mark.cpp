#include "time/shared_mark.h"

#include "memory/shared_file.h"
#include "time/clock.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace anyrig::virtual_gpu {

// All members are zero in a new file.
struct SharedMark::Shared {
  std::atomic<int64_t> marks;
  std::atomic<double> seconds_left; // of the last mark, when it was made
  std::atomic<int64_t> seen_done;   // this mark and all earlier ones are known to be done
};
static_assert(
    std::atomic<int64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

SharedMark::SharedMark(Shared* shared, int file) : shared_(shared), file_(file) {}

SharedMark::~SharedMark() {
  munmap(shared_, sizeof(Shared));
  if (file_ >= 0) {
    close(file_);
  }
}

std::shared_ptr<SharedMark> SharedMark::create() {
  const int file = make_shared_file(sizeof(Shared));
  auto* shared = static_cast<Shared*>(map_shared_file(file, sizeof(Shared)));
  return std::shared_ptr<SharedMark>(new SharedMark(shared, file));
}

std::shared_ptr<SharedMark> SharedMark::open(int64_t process, int file) {
  auto* shared = static_cast<Shared*>(map_file_of(process, file, sizeof(Shared)));
  return std::shared_ptr<SharedMark>(new SharedMark(shared, -1));
}

void SharedMark::set(double moment) {
  std::lock_guard<std::mutex> guard(mutex_);
  moment_ = moment;
  shared_->seconds_left = std::max(0.0, moment - Clock::get().host_seconds());
  known_marks_ = ++shared_->marks;
}

double SharedMark::moment() {
  std::lock_guard<std::mutex> guard(mutex_);
  const int64_t marks = shared_->marks;
  if (marks != known_marks_) {
    known_marks_ = marks;
    moment_ = Clock::get().host_seconds() + shared_->seconds_left;
  }
  return moment_;
}

bool SharedMark::was_seen_done() {
  std::lock_guard<std::mutex> guard(mutex_);
  return shared_->seen_done >= known_marks_;
}

void SharedMark::set_seen_done() {
  std::lock_guard<std::mutex> guard(mutex_);
  int64_t seen = shared_->seen_done;
  while (seen < known_marks_ && !shared_->seen_done.compare_exchange_weak(seen, known_marks_)) {
  }
}

} // namespace anyrig::virtual_gpu
