#ifdef USE_C10D_GLOO

#include "collectives/transfer.h"

#include "collectives/gil.h"
#include "time/clock.h"
#include "time/streams.h"

#include <algorithm>

namespace anyrig::virtual_gpu {

double Transfer::run(double free_at) {
  try {
    started_ = std::max(free_at, parts_.ready);
    ended_ = parts_.body(parts_.call, parts_.stream, free_at);
    end(nullptr);
    return ended_;
  } catch (...) {
    end(std::current_exception());
    return free_at;
  }
}

void Transfer::fail(const std::string& reason) {
  try {
    raise_failure(parts_.call, reason);
  } catch (...) {
    end(std::current_exception());
  }
}

void Transfer::end(std::exception_ptr error) {
  if (parts_.on_end) {
    parts_.on_end(*this, error == nullptr);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  error_ = std::move(error);
  has_ended_ = true;
  changed_.notify_all();
}

bool Transfer::has_ended() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return has_ended_;
}

std::exception_ptr Transfer::error() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return error_;
}

bool Transfer::join(std::optional<Moment> deadline) {
  WithoutGil without_gil;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ended = [this] { return has_ended_; };
  if (deadline.has_value()) {
    return changed_.wait_until(lock, *deadline, ended);
  }
  // This wait ends: the body has its own time limit, and a group that closes fails its queued
  // transfers.
  changed_.wait(lock, ended);
  return true;
}

void Transfer::finish_wait() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (error_) {
      error_seen_ = true;
      std::rethrow_exception(error_);
    }
  }
  auto& clock = Clock::get();
  clock.wait_until(current_stream(parts_.stream.device_index()), ended_);
  if (parts_.blocks_host) {
    clock.wait_on_host(ended_);
  }
}

void Transfer::join_and_raise_unseen() {
  join();
  std::lock_guard<std::mutex> guard(mutex_);
  if (error_ && !error_seen_) {
    error_seen_ = true;
    std::rethrow_exception(error_);
  }
}

void Transfer::release() {
  std::vector<at::Tensor> tensors;
  Body body;
  std::lock_guard<std::mutex> guard(mutex_);
  if (has_ended_) {
    tensors.swap(parts_.tensors);
    body.swap(parts_.body);
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
