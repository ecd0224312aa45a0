#ifdef USE_C10D_GLOO

#include "collectives/collective.h"

#include "collectives/host_bytes.h"
#include "device/device.h"
#include "time/clock.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// Up to this size, the row of an all_reduce travels with the announcement, and rank 0 combines the
// rows. Above, each rank combines one part of the row and sends the result to all others.
constexpr size_t kRowWithAnnouncementBytes = 16 * 1024;

// Moves rows between all ranks of a group, within the time limit of the call.
class Exchange {
 public:
  Exchange(Transport& transport, const CollectiveCall& call)
      : transport_(transport),
        rank_(call.group.rank),
        size_(call.group.size),
        deadline_(std::chrono::steady_clock::now() + call.limit) {}

  // Copies send_rows[i] of this rank to receive_rows[rank] of rank i.
  void move(const std::vector<at::Tensor>& send_rows, const std::vector<at::Tensor>& receive_rows) {
    std::vector<Message> to_send;
    std::vector<Message> to_receive;
    // Start with the next rank, so that the ranks do not all send to rank 0 first.
    for (int step = 1; step < size_; ++step) {
      const int next = (rank_ + step) % size_;
      const int previous = (rank_ - step + size_) % size_;
      to_send.push_back({next, send_rows[next]});
      to_receive.push_back({previous, receive_rows[previous]});
    }
    transport_.exchange(to_send, to_receive, Channel::Collectives, deadline_);
    const auto& from = send_rows[rank_];
    const auto& to = receive_rows[rank_];
    if (from.defined() && to.defined() && from.data_ptr() != to.data_ptr()) {
      to.copy_(from);
    }
  }

  // Combines the rows that all ranks send to this rank into `result`.
  void reduce(
      const std::vector<at::Tensor>& send_rows,
      const at::Tensor& result,
      const Reduction& reduction) {
    std::vector<at::Tensor> parts(size_);
    if (result.defined()) {
      for (int i = 0; i < size_; ++i) {
        parts[i] = i == rank_ ? send_rows[rank_] : at::empty_like(result);
      }
    }
    move(send_rows, parts);
    if (result.defined()) {
      result.copy_(reduction.combine(parts));
    }
  }

  void all_reduce(const at::Tensor& mine, const at::Tensor& row, const Reduction& reduction) {
    const auto parts = split_row(row, size_);
    reduce(split_row(mine, size_), parts[rank_], reduction);
    move(std::vector<at::Tensor>(size_, parts[rank_]), parts);
  }

 private:
  Transport& transport_;
  int rank_;
  int size_;
  Moment deadline_;
};

void move_data(Collective& collective, Exchange& exchange) {
  if (!collective.reduction.has_value()) {
    exchange.move(collective.send_rows, collective.receive_rows);
    return;
  }
  const Reduction& reduction = *collective.reduction;
  if (collective.announcement.kind == CollectiveKind::AllReduce) {
    exchange.all_reduce(reduction.prepare(collective.result), collective.result, reduction);
    return;
  }
  std::vector<at::Tensor> prepared;
  for (const auto& row : collective.send_rows) {
    prepared.push_back(row.defined() ? reduction.prepare(row) : row);
  }
  exchange.reduce(prepared, collective.result, reduction);
}

// Returns a number that is the same on all ranks of a collective, and that the clock never gives
// out.
int64_t flow_of(const CollectiveCall& call) {
  constexpr uint64_t kLargest = (uint64_t{1} << 62) - 1;
  const uint64_t group = std::hash<std::string>()(call.group.name);
  return static_cast<int64_t>((uint64_t{1} << 62) | ((group ^ (call.sequence << 1)) & kLargest));
}

Agreement meet(const Collective& collective, RollCall& roll_call, const CollectiveCall& call) {
  const auto& announcement = collective.announcement;
  at::Tensor row;
  if (announcement.kind == CollectiveKind::AllReduce && announcement.has_values) {
    const size_t bytes = collective.result.nbytes();
    if (bytes > 0 && bytes <= kRowWithAnnouncementBytes) {
      row = collective.reduction->prepare(collective.result);
    }
  }
  const auto combine = [&](const std::vector<at::Tensor>& rows) {
    return collective.reduction->combine(rows);
  };
  return roll_call.meet(announcement, row, combine, std::chrono::steady_clock::now() + call.limit);
}

} // namespace

bool has_values(const Collective& collective) {
  const auto& announcement = collective.announcement;
  if (announcement.kind == CollectiveKind::AllReduce) {
    return collective.result.defined();
  }
  if (announcement.kind == CollectiveKind::Broadcast && collective.send_rows[0].defined()) {
    return true; // the root keeps its own row
  }
  for (size_t i = 0; i < collective.send_rows.size(); ++i) {
    const bool has_no_data = announcement.send_bytes[i] > 0 && !collective.send_rows[i].defined();
    const bool has_memory = collective.receive_rows[i].defined() || collective.result.defined();
    if (has_no_data || (announcement.receive_bytes[i] > 0 && !has_memory)) {
      return false;
    }
  }
  return true;
}

double occupy_stream(
    const Collective& collective,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double start,
    c10::ArrayRef<Place> places) {
  if (!Clock::get().enabled()) {
    return 0;
  }
  const double seconds = collective_seconds(collective.announcement.kind, collective.bytes, places);
  return Clock::get().run_collective(
      stream, start, seconds, Clock::Direction::Both,
      {collective.bytes, flow_of(call), count_nodes(places)});
}

double perform(
    Collective& collective,
    Transport& transport,
    RollCall& roll_call,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at) {
  // NCCL's kernels write to any tensor's memory. A tensor that was made in inference mode may be
  // written to in inference mode only, and that mode does not carry over from the program's thread.
  const c10::InferenceMode inference_mode;
  collective.announcement.ready = std::max(collective.announcement.ready, free_at);
  try {
    const auto agreement = meet(collective, roll_call, call);
    if (!agreement.disagreement.empty()) {
      raise_failure(call, "the ranks do not call the same collective: " + agreement.disagreement);
    }
    collective.has_moved = agreement.all_have_values;
    if (agreement.row.defined()) {
      collective.result.copy_(agreement.row);
    } else if (collective.has_moved) {
      Exchange exchange(transport, call);
      move_data(collective, exchange);
    }
    return occupy_stream(collective, call, stream, agreement.start, agreement.places);
  } catch (const TransportError& error) {
    roll_call.close(); // the data of this group may be in any state
    raise_failure(call, error);
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
