// Longer than 400 lines because both ends of the protocol must agree on the format of its messages.
#ifdef USE_C10D_GLOO

#include "collectives/roll_call.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS has none; a lost rank then raises SIGPIPE, which Python ignores
#endif

namespace anyrig::virtual_gpu {
namespace {

using Reason = TransportError::Reason;

enum Kind : int64_t { kAnnouncement, kHere, kExpired, kAgreement, kFailure };

struct FrameHead {
  int64_t kind;
  int64_t round;
  int64_t bytes;
};

// No frame is larger: an announcement of 16 bytes for each rank, and a small row.
constexpr int64_t kMaxFrameBytes = int64_t{64} << 20;

// How long rank 0 waits before it reports its presence.
constexpr std::chrono::milliseconds kSilence{100};

// Rank 0 answers a rank whose time is up at once, if its thread gets a core.
constexpr std::chrono::seconds kAnswerLimit{20};

constexpr std::chrono::seconds kFrameLimit{60};

// A lost connection to the rank behind one socket.
struct Lost {
  size_t socket;
  std::string text;
};

int milliseconds_until(Moment moment) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      moment - std::chrono::steady_clock::now());
  constexpr int64_t kMax = int64_t{1} << 30;
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, kMax));
}

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const at::Tensor& bytes) {
    text_.append(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  void put_text(const std::string& text) {
    put(static_cast<int64_t>(text.size()));
    text_ += text;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  template <class T>
  T take() {
    T value;
    take_bytes(&value, sizeof value);
    return value;
  }
  void take_bytes(void* to, size_t bytes) {
    check_left(bytes);
    std::memcpy(to, text_.data() + at_, bytes);
    at_ += bytes;
  }
  std::string take_text() {
    const auto bytes = static_cast<size_t>(take<int64_t>());
    check_left(bytes); // before memory is allocated for them
    std::string text(bytes, '\0');
    take_bytes(text.data(), bytes);
    return text;
  }
  size_t left() const { return text_.size() - at_; }

 private:
  void check_left(size_t bytes) const {
    TORCH_CHECK(bytes <= left(), "another rank runs a different version of anyrig");
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::string write_announcement(const Announcement& announcement, const at::Tensor& row) {
  Writer writer;
  writer.put(pack(announcement));
  if (row.defined()) {
    writer.put(row);
  }
  return writer.text();
}

std::string write_agreement(const Agreement& agreement) {
  Writer writer;
  writer.put_text(agreement.disagreement);
  writer.put(agreement.all_have_values);
  writer.put(agreement.start);
  for (const Place& place : agreement.places) {
    writer.put(place);
  }
  if (agreement.row.defined()) {
    writer.put(agreement.row);
  }
  return writer.text();
}

Agreement read_agreement(const std::string& text, int size, const at::Tensor& row) {
  Reader reader(text);
  Agreement agreement;
  agreement.disagreement = reader.take_text();
  agreement.all_have_values = reader.take<bool>();
  agreement.start = reader.take<double>();
  for (int i = 0; i < size; ++i) {
    agreement.places.push_back(reader.take<Place>());
  }
  if (reader.left() > 0) {
    agreement.row = at::empty_like(row);
    reader.take_bytes(agreement.row.mutable_data_ptr(), agreement.row.nbytes());
  }
  return agreement;
}

std::string write_failure(const TransportError& error) {
  Writer writer;
  writer.put(error.reason);
  writer.put_text(error.gloo_text);
  for (const int peer : error.peers) {
    writer.put(peer);
  }
  return writer.text();
}

TransportError read_failure(const std::string& text) {
  Reader reader(text);
  const auto reason = reader.take<Reason>();
  auto words = reader.take_text();
  std::vector<int> peers;
  while (reader.left() > 0) {
    peers.push_back(reader.take<int>());
  }
  return {reason, std::move(peers), std::move(words)};
}

Agreement agree(const std::vector<Announcement>& by_rank) {
  Agreement agreement;
  agreement.disagreement = find_disagreement(by_rank).value_or("");
  agreement.all_have_values = true;
  for (const auto& announcement : by_rank) {
    agreement.all_have_values = agreement.all_have_values && announcement.has_values;
    agreement.start = std::max(agreement.start, announcement.ready);
    agreement.places.push_back(announcement.place);
  }
  return agreement;
}

} // namespace

struct RollCall::Frame {
  int64_t kind;
  int64_t round;
  std::string payload;
};

RollCall::RollCall(int rank, int size, std::vector<int> sockets)
    : rank_(rank), size_(size), sockets_(std::move(sockets)) {
  // For a rank that is stopped in the middle of a frame.
  const timeval limit{kFrameLimit.count(), 0};
  for (const int socket : sockets_) {
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
}

RollCall::~RollCall() {
  for (const int socket : sockets_) {
    ::close(socket);
  }
}

void RollCall::close() {
  closed_ = true;
  for (const int socket : sockets_) {
    shutdown(socket, SHUT_RDWR);
  }
}

void RollCall::send_frame(int socket, int64_t kind, const std::string& payload) const {
  const FrameHead head{kind, round_, static_cast<int64_t>(payload.size())};
  std::string frame(reinterpret_cast<const char*>(&head), sizeof head);
  frame += payload;
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t count = ::send(socket, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      const auto index = std::find(sockets_.begin(), sockets_.end(), socket) - sockets_.begin();
      throw Lost{static_cast<size_t>(index), std::strerror(errno)};
    }
    sent += static_cast<size_t>(count);
  }
}

RollCall::Frame RollCall::receive_frame(int socket) const {
  const auto receive = [&](void* to, size_t bytes) {
    for (size_t received = 0; received < bytes;) {
      const ssize_t count = recv(socket, static_cast<char*>(to) + received, bytes - received, 0);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        const auto index = std::find(sockets_.begin(), sockets_.end(), socket) - sockets_.begin();
        throw Lost{
            static_cast<size_t>(index),
            count == 0 ? "connection closed by peer" : std::strerror(errno)};
      }
      received += static_cast<size_t>(count);
    }
  };
  FrameHead head;
  receive(&head, sizeof head);
  TORCH_CHECK(
      head.bytes >= 0 && head.bytes <= kMaxFrameBytes,
      "another rank runs a different version of anyrig");
  Frame frame{head.kind, head.round, std::string(static_cast<size_t>(head.bytes), '\0')};
  receive(frame.payload.data(), frame.payload.size());
  return frame;
}

Agreement RollCall::meet(
    const Announcement& mine,
    const at::Tensor& row,
    const Combine& combine,
    Moment deadline) {
  if (closed_) {
    throw TransportError(Reason::Closed, {}, "the group is closed");
  }
  ++round_;
  try {
    auto agreement = rank_ == 0 ? lead(mine, row, combine, deadline) : follow(mine, row, deadline);
    if (round_ == 1) {
      std::lock_guard<std::mutex> guard(places_mutex_);
      places_ = agreement.places;
    }
    return agreement;
  } catch (const Lost& lost) {
    fail({Reason::Lost, {rank_of(lost.socket)}, lost.text});
  } catch (...) {
    close(); // the others must not wait for this rank
    throw;
  }
}

std::vector<Place> RollCall::places() const {
  std::lock_guard<std::mutex> guard(places_mutex_);
  return places_;
}

void RollCall::fail(const TransportError& error) {
  const bool was_closed = closed_;
  if (rank_ == 0 && !was_closed) {
    for (const int socket : sockets_) {
      try {
        send_frame(socket, kFailure, write_failure(error));
      } catch (const Lost&) {
        // this rank notices by itself
      }
    }
  }
  close();
  if (was_closed) {
    throw TransportError(Reason::Closed, {}, "the group is closed");
  }
  throw error;
}

std::vector<std::string> RollCall::collect(Moment deadline) {
  std::vector<std::string> by_rank(size_);
  std::vector<bool> is_here(size_, false);
  int missing = size_ - 1;
  const auto raise_missing = [&] {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank) {
      if (!is_here[rank]) {
        ranks.push_back(rank);
      }
    }
    fail({Reason::TimeLimit, std::move(ranks), "timed out"});
  };
  std::vector<pollfd> polled;
  for (const int socket : sockets_) {
    polled.push_back({socket, POLLIN, 0});
  }
  const auto say_here = [&](int rank) { send_frame(sockets_[rank - 1], kHere, ""); };
  bool has_said_here = false;
  const Moment silent_until = std::chrono::steady_clock::now() + kSilence;
  while (missing > 0) {
    const Moment next = has_said_here ? deadline : std::min(deadline, silent_until);
    const int ready = poll(polled.data(), polled.size(), milliseconds_until(next));
    if (ready < 0 && errno != EINTR) {
      fail({Reason::Lost, {0}, std::strerror(errno)});
    }
    if (ready == 0 && next == deadline) {
      raise_missing();
    }
    if (ready == 0) {
      has_said_here = true;
      for (int rank = 1; rank < size_; ++rank) {
        if (is_here[rank]) {
          say_here(rank);
        }
      }
    }
    for (size_t i = 0; i < polled.size() && ready > 0; ++i) {
      if (polled[i].revents == 0) {
        continue;
      }
      auto frame = receive_frame(sockets_[i]);
      const int rank = rank_of(i);
      if (frame.kind == kExpired && frame.round == round_) {
        raise_missing();
      } else if (frame.kind == kAnnouncement && frame.round == round_ && !is_here[rank]) {
        by_rank[rank] = std::move(frame.payload);
        is_here[rank] = true;
        --missing;
        if (has_said_here) {
          say_here(rank);
        }
      } // else a rank whose time was up in an earlier round
    }
  }
  return by_rank;
}

Agreement RollCall::lead(
    const Announcement& mine,
    const at::Tensor& row,
    const Combine& combine,
    Moment deadline) {
  const auto texts = collect(deadline);
  std::vector<Announcement> by_rank{mine};
  std::vector<at::Tensor> rows{row};
  for (int rank = 1; rank < size_; ++rank) {
    auto package = empty_package(size_);
    Reader reader(texts[rank]);
    reader.take_bytes(package.mutable_data_ptr(), package.nbytes());
    by_rank.push_back(unpack(package, size_));
    if (row.defined() && reader.left() == row.nbytes()) {
      rows.push_back(at::empty_like(row));
      reader.take_bytes(rows.back().mutable_data_ptr(), row.nbytes());
    }
  }
  Agreement agreement = agree(by_rank);
  if (agreement.disagreement.empty() && agreement.all_have_values && row.defined()) {
    agreement.row = combine(rows);
  }
  const auto answer = write_agreement(agreement);
  for (const int socket : sockets_) {
    send_frame(socket, kAgreement, answer);
  }
  return agreement;
}

Agreement RollCall::follow(const Announcement& mine, const at::Tensor& row, Moment deadline) {
  const int socket = sockets_[0];
  send_frame(socket, kAnnouncement, write_announcement(mine, row));
  bool leader_is_here = false;
  bool has_expired = false;
  for (;;) {
    pollfd polled{socket, POLLIN, 0};
    const int ready = poll(&polled, 1, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) {
      fail({Reason::Lost, {0}, std::strerror(errno)});
    }
    if (ready == 0 && (has_expired || !leader_is_here)) {
      fail({Reason::TimeLimit, {0}, "timed out"});
    }
    if (ready == 0) {
      has_expired = true;
      deadline += kAnswerLimit;
      send_frame(socket, kExpired, "");
    }
    if (ready <= 0) {
      continue;
    }
    const auto frame = receive_frame(socket);
    if (frame.round != round_) {
      continue; // rank 0 was there in an earlier round
    }
    switch (frame.kind) {
      case kHere:
        leader_is_here = true;
        break;
      case kAgreement:
        return read_agreement(frame.payload, size_, row);
      case kFailure:
        fail(read_failure(frame.payload));
      default:
        TORCH_CHECK(false, "another rank runs a different version of anyrig");
    }
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
