#ifdef USE_C10D_GLOO

#include "collectives/collective.h"

#include "collectives/host_bytes.h"
#include "device/device.h"
#include "time/clock.h"

#include <c10/core/InferenceMode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace anyrig::virtual_gpu {
namespace {

// Up to this size every rank sends its whole row to every other one, which takes one round; above,
// each rank combines a part, which takes two and moves less.
constexpr size_t kOneRoundBytes = 16 * 1024;

class Exchange {
 public:
  Exchange(Transport& transport, const CollectiveCall& call)
      : transport_(transport),
        rank_(call.group.rank),
        size_(call.group.size),
        deadline_(std::chrono::steady_clock::now() + call.limit) {}

  std::vector<Announcement> announce(const Announcement& mine) {
    const auto package = pack(mine);
    std::vector<at::Tensor> gives(size_, package);
    std::vector<at::Tensor> takes;
    for (int i = 0; i < size_; ++i) {
      takes.push_back(i == rank_ ? package : empty_package(size_));
    }
    move(gives, takes);
    std::vector<Announcement> by_rank;
    for (const auto& received : takes) {
      by_rank.push_back(unpack(received, size_));
    }
    return by_rank;
  }

  // gives[i] of this rank becomes takes[rank] of rank i.
  void move(const std::vector<at::Tensor>& gives, const std::vector<at::Tensor>& takes) {
    std::vector<Message> to_send;
    std::vector<Message> to_receive;
    // Starting with the neighbour, so that not all send to rank 0 first.
    for (int step = 1; step < size_; ++step) {
      const int next = (rank_ + step) % size_;
      const int previous = (rank_ - step + size_) % size_;
      to_send.push_back({next, gives[next]});
      to_receive.push_back({previous, takes[previous]});
    }
    transport_.exchange(to_send, to_receive, Channel::Collectives, deadline_);
    const auto& from = gives[rank_];
    const auto& to = takes[rank_];
    if (from.defined() && to.defined() && from.data_ptr() != to.data_ptr()) {
      to.copy_(from);
    }
  }

  // `result` becomes the combination of what all ranks give this one.
  void reduce(
      const std::vector<at::Tensor>& gives,
      const at::Tensor& result,
      const Reduction& reduction) {
    std::vector<at::Tensor> parts(size_);
    if (result.defined()) {
      for (int i = 0; i < size_; ++i) {
        parts[i] = i == rank_ ? gives[rank_] : at::empty_like(result);
      }
    }
    move(gives, parts);
    if (result.defined()) {
      result.copy_(reduction.combine(parts));
    }
  }

  void all_reduce(const at::Tensor& mine, const at::Tensor& row, const Reduction& reduction) {
    if (mine.nbytes() <= kOneRoundBytes) {
      reduce(std::vector<at::Tensor>(size_, mine), row, reduction);
      return;
    }
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
    exchange.move(collective.gives, collective.takes);
    return;
  }
  const Reduction& reduction = *collective.reduction;
  if (collective.announcement.kind == CollectiveKind::AllReduce) {
    exchange.all_reduce(reduction.prepare(collective.result), collective.result, reduction);
    return;
  }
  std::vector<at::Tensor> prepared;
  for (const auto& give : collective.gives) {
    prepared.push_back(give.defined() ? reduction.prepare(give) : give);
  }
  exchange.reduce(prepared, collective.result, reduction);
}

} // namespace

bool has_values(const Collective& collective) {
  const auto& announcement = collective.announcement;
  if (announcement.kind == CollectiveKind::AllReduce) {
    return collective.result.defined();
  }
  if (announcement.kind == CollectiveKind::Broadcast && collective.gives[0].defined()) {
    return true; // the root keeps what it has
  }
  for (size_t i = 0; i < collective.gives.size(); ++i) {
    const bool lacks = announcement.gives[i] > 0 && !collective.gives[i].defined();
    const bool has_no_room =
        announcement.takes[i] > 0 && !collective.takes[i].defined() && !collective.result.defined();
    if (lacks || has_no_room) {
      return false;
    }
  }
  return true;
}

double perform(
    Collective& collective,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_from) {
  // A card's collective writes to memory, whatever tensor it belongs to; tensors made in inference
  // mode may be written to in it alone, and this thread is not the program's.
  const c10::InferenceMode inference_mode;
  collective.announcement.ready = std::max(collective.announcement.ready, free_from);
  try {
    Exchange exchange(transport, call);
    const auto by_rank = exchange.announce(collective.announcement);
    if (const auto disagreement = find_disagreement(by_rank)) {
      raise_failure(call, "the ranks do not call the same collective: " + *disagreement);
    }
    collective.has_moved =
        std::all_of(by_rank.begin(), by_rank.end(), [](const auto& announcement) {
          return announcement.has_values;
        });
    if (collective.has_moved) {
      move_data(collective, exchange);
    }
    if (!Clock::get().enabled()) {
      return 0;
    }
    double start = 0;
    std::vector<Place> places;
    for (const auto& announcement : by_rank) {
      start = std::max(start, announcement.ready);
      places.push_back(announcement.place);
    }
    const double seconds =
        collective_seconds(collective.announcement.kind, collective.bytes, places);
    Clock::get().run_collective(stream, start, seconds);
    return start + seconds;
  } catch (const TransportError& error) {
    raise_failure(call, error);
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
