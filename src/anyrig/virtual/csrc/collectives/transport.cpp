#ifdef USE_C10D_GLOO

#include "collectives/transport.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace anyrig::virtual_gpu {
namespace {

using Reason = TransportError::Reason;

// At least 1 ms: gloo treats 0 as no limit.
std::chrono::milliseconds time_until(Moment deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Reason classify(const std::string& gloo_text) {
  for (const char* words : {"Timed out", "Application timeout", "timed out"}) {
    if (gloo_text.find(words) != std::string::npos) {
      return Reason::TimeLimit;
    }
  }
  return Reason::Lost;
}

bool is_empty(const Message& message) {
  return !message.data.defined() || message.data.numel() == 0;
}

} // namespace

void Transport::send_to_self(const at::Tensor& data) {
  std::lock_guard<std::mutex> guard(mutex_);
  to_self_.push_back(data);
  changed_.notify_all();
}

void Transport::receive_from_self(const at::Tensor& data, Moment deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool is_over =
      changed_.wait_until(lock, deadline, [this] { return closed_ || !to_self_.empty(); });
  if (closed_) {
    throw TransportError(Reason::Closed, {}, "the group is closed");
  }
  if (!is_over) {
    throw TransportError(
        Reason::TimeLimit, {gloo_->getRank()}, "this rank has sent nothing to itself");
  }
  const at::Tensor sent = std::move(to_self_.front());
  to_self_.pop_front();
  TORCH_INTERNAL_ASSERT(sent.nbytes() == data.nbytes());
  std::memcpy(data.mutable_data_ptr(), sent.const_data_ptr(), data.nbytes());
}

void Transport::add_pending(const Works& works) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& work : works) {
    pending_.insert(work.get());
  }
  if (closed_) {
    for (const auto& work : works) {
      work->abort();
    }
  }
}

void Transport::remove_pending(const Works& works) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& work : works) {
    pending_.erase(work.get());
  }
}

void Transport::exchange(
    c10::ArrayRef<Message> sends,
    c10::ArrayRef<Message> receives,
    Channel channel,
    Moment deadline) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (closed_) {
      throw TransportError(Reason::Closed, {}, "the group is closed");
    }
  }
  const int own_rank = gloo_->getRank();
  for (const Message& message : sends) {
    if (message.peer == own_rank && !is_empty(message)) {
      send_to_self(message.data);
    }
  }
  for (const Message& message : receives) {
    if (message.peer == own_rank && !is_empty(message)) {
      receive_from_self(message.data, deadline);
    }
  }
  Works works;
  std::vector<int> peers;
  const auto post = [&](c10::ArrayRef<Message> messages, auto&& start) {
    for (const Message& message : messages) {
      if (message.peer == own_rank || is_empty(message)) {
        continue;
      }
      std::vector<at::Tensor> data{message.data};
      try {
        works.push_back(start(data, message.peer, static_cast<int>(channel)));
      } catch (const std::exception& error) {
        throw TransportError(classify(error.what()), {message.peer}, error.what());
      }
      peers.push_back(message.peer);
    }
  };
  // Post the receives first, and wait for them first: they show which ranks are missing.
  using Data = std::vector<at::Tensor>;
  post(receives, [this](Data& data, int peer, int tag) { return gloo_->recv(data, peer, tag); });
  post(sends, [this](Data& data, int peer, int tag) { return gloo_->send(data, peer, tag); });
  add_pending(works);

  std::vector<int> missing;
  std::optional<TransportError> failure;
  for (size_t i = 0; i < works.size(); ++i) {
    try {
      // After the first timeout gloo closes all connections, so each further wait returns at once
      // and shows whether that message arrived.
      if (!works[i]->wait(time_until(deadline)) && !failure.has_value()) {
        failure.emplace(Reason::Closed, std::vector<int>{}, "the group was closed");
      }
    } catch (const std::exception& error) {
      if (std::find(missing.begin(), missing.end(), peers[i]) == missing.end()) {
        missing.push_back(peers[i]);
      }
      if (!failure.has_value()) {
        failure.emplace(classify(error.what()), std::vector<int>{}, error.what());
      }
    }
    if (failure.has_value() && failure->reason != Reason::TimeLimit) {
      break;
    }
  }
  remove_pending(works);
  if (failure.has_value()) {
    failure->peers = std::move(missing);
    throw *failure;
  }
}

void Transport::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  changed_.notify_all();
  for (auto* work : pending_) {
    work->abort();
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
