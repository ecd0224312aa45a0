#ifdef USE_C10D_GLOO

#include "collectives/communicator.h"

#include "collectives/gil.h"

namespace anyrig::virtual_gpu {

Communicator::Communicator() : thread_([this] { loop(); }) {}

Communicator::~Communicator() {
  stop("the process group is gone");
}

void Communicator::enqueue(TransferPointer transfer) {
  drop_spent();
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!stopping_) {
      transfers_.push_back(std::move(transfer));
      changed_.notify_all();
      return;
    }
  }
  transfer->fail("the process group was closed or aborted before");
  transfer->take_over();
}

void Communicator::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !transfers_.empty(); });
    if (stopping_) {
      return;
    }
    auto* transfer = transfers_.front().get();
    lock.unlock();
    free_from_ = transfer->run(free_from_);
    lock.lock();
    spent_.push_back(std::move(transfers_.front()));
    transfers_.pop_front();
    changed_.notify_all();
  }
}

bool Communicator::drain(Moment deadline) {
  WithoutGil without_gil;
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return stopping_ || transfers_.empty(); });
}

void Communicator::stop(const std::string& reason) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    WithoutGil without_gil;
    thread_.join();
  }
  std::deque<TransferPointer> left;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    left.swap(transfers_);
  }
  for (const auto& transfer : left) {
    if (!transfer->has_ended()) {
      transfer->fail(reason);
    }
  }
  drop_spent();
}

std::vector<Communicator::TransferPointer> Communicator::held() {
  std::lock_guard<std::mutex> guard(mutex_);
  auto held = spent_;
  held.insert(held.end(), transfers_.begin(), transfers_.end());
  return held;
}

void Communicator::drop_spent() {
  std::vector<TransferPointer> spent;
  std::lock_guard<std::mutex> guard(mutex_);
  spent.swap(spent_);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
