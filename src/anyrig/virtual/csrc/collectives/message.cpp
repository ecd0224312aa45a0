#ifdef USE_C10D_GLOO

#include "collectives/message.h"

#include "device/device.h"
#include "time/clock.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace anyrig::virtual_gpu {

namespace {

// Occupies `stream` from `start` on; returns the virtual time at which the message is done.
double occupy(
    const c10::Stream& stream,
    CollectiveKind kind,
    int64_t bytes,
    double start,
    c10::ArrayRef<Place> ends) {
  if (!Clock::get().enabled()) {
    return 0;
  }
  const double seconds = collective_seconds(kind, static_cast<double>(bytes), ends);
  return Clock::get().run_collective(
      stream, start, seconds,
      kind == CollectiveKind::Send ? Clock::Direction::Out : Clock::Direction::In,
      {static_cast<double>(bytes), -1, count_nodes(ends)});
}

} // namespace

double send(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at) {
  auto& announcement = message.announcement;
  announcement.ready = std::max(announcement.ready, free_at);
  announcement.send_bytes = {message.bytes};
  announcement.receive_bytes = {0};
  const auto deadline = std::chrono::steady_clock::now() + call.limit;
  try {
    transport.exchange(
        {{message.peer, pack(announcement)}, {message.peer, message.row}}, {}, Channel::Messages,
        deadline);
  } catch (const TransportError& error) {
    raise_failure(call, error);
  }
  return occupy(
      stream, CollectiveKind::Send, message.bytes, announcement.ready, announcement.place);
}

double receive(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at) {
  const auto deadline = std::chrono::steady_clock::now() + call.limit;
  try {
    const auto package = empty_package(1);
    transport.exchange({}, {{message.peer, package}}, Channel::Messages, deadline);
    const auto sent = unpack(package, 1);
    const int64_t sent_bytes = sent.send_bytes[0];
    if (sent_bytes != message.bytes) {
      if (sent.has_values) {
        // Receive the data anyway, or the next receive would read it.
        const auto unused = at::empty({sent_bytes}, at::kByte);
        transport.exchange({}, {{message.peer, unused}}, Channel::Messages, deadline);
      }
      raise_failure(
          call,
          c10::str(
              "rank ", message.peer, " sent ", sent_bytes, " bytes, but this rank expects ",
              message.bytes));
    }
    if (sent.has_values) {
      message.has_arrived = message.row.defined();
      const auto row = message.has_arrived ? message.row : at::empty({sent_bytes}, at::kByte);
      transport.exchange({}, {{message.peer, row}}, Channel::Messages, deadline);
    }
    const Place ends[] = {sent.place, message.announcement.place};
    const double start = std::max({sent.ready, message.announcement.ready, free_at});
    return occupy(stream, CollectiveKind::Receive, message.bytes, start, ends);
  } catch (const TransportError& error) {
    raise_failure(call, error);
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
