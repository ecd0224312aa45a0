#ifdef USE_C10D_GLOO

#include "collectives/communicator.h"

#include "collectives/gil.h"

namespace anyrig::virtual_gpu {

namespace {

constexpr std::chrono::seconds kLongestIdle{1};

} // namespace

Communicator::~Communicator() {
  stop("the process group was deleted");
}

void Communicator::enqueue(TransferPointer transfer) {
  drop_finished();
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!stopping_) {
      transfers_.push_back(std::move(transfer));
      if (!is_running_) {
        if (thread_.joinable()) {
          thread_.join(); // it ends without the lock
        }
        thread_ = std::thread([this] { loop(); });
        is_running_ = true;
      }
      changed_.notify_all();
      return;
    }
  }
  transfer->fail("the process group was already closed or aborted");
  transfer->finish_wait();
}

void Communicator::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const bool has_work =
        changed_.wait_for(lock, kLongestIdle, [this] { return stopping_ || !transfers_.empty(); });
    if (stopping_ || !has_work) {
      is_running_ = false;
      return;
    }
    auto* transfer = transfers_.front().get();
    lock.unlock();
    free_at_ = transfer->run(free_at_);
    lock.lock();
    finished_.push_back(std::move(transfers_.front()));
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
  drop_finished();
}

std::vector<Communicator::TransferPointer> Communicator::transfers() {
  std::lock_guard<std::mutex> guard(mutex_);
  auto transfers = finished_;
  transfers.insert(transfers.end(), transfers_.begin(), transfers_.end());
  return transfers;
}

void Communicator::drop_finished() {
  std::vector<TransferPointer> finished;
  std::lock_guard<std::mutex> guard(mutex_);
  finished.swap(finished_);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
