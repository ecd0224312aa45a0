// How the ranks of a group agree on a collective before any data moves: through rank 0.
//
//   rank 1 ──announcement──>           ──answer──> rank 1
//   rank 2 ──announcement──>  rank 0   ──answer──> rank 2
//   rank 3 ──announcement──>           ──answer──> rank 3
//
// That is two messages for each rank, where announcing to all ranks would be one for each pair. The
// row of a small all_reduce travels with them, and rank 0 returns the sum.
//
// If a rank is missing, every other rank learns which. Rank 0 says that it waits ("here"), so that
// a rank whose time is up knows whether rank 0 takes part. That rank then notifies rank 0
// ("expired"), which answers all ranks with the list of the missing ones. Rank 0 notices at once
// when a rank ends, and the others notice when rank 0 ends. After such a failure the group is
// closed.
#pragma once

#include "collectives/announcement.h"
#include "collectives/transport.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// What rank 0 found out about a collective.
struct Agreement {
  // The first mismatch of the announcements; empty if they match.
  std::string disagreement;
  // Whether every rank has values, so that data moves.
  bool all_have_values = false;
  // The virtual time, in seconds, at which the last rank is ready.
  double start = 0;
  // The places of the ranks.
  std::vector<Place> places;
  // The combined rows; undefined if the ranks passed none, disagree or have no values.
  at::Tensor row;
};

class RollCall {
 public:
  // Combines the rows of all ranks, in their order.
  using Combine = std::function<at::Tensor(const std::vector<at::Tensor>& rows)>;

  // Takes over `sockets`: on rank 0 those to the ranks 1, 2, ..., on other ranks the one to rank 0.
  RollCall(int rank, int size, std::vector<int> sockets);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // Announces `mine`, with a CPU `row` to combine if it is defined, and waits for the agreement.
  // All ranks that pass matching announcements pass a row, or none does. Throws TransportError, or
  // what `combine` throws; the group is closed then. Only one thread calls this. Needs no GIL.
  Agreement meet(
      const Announcement& mine,
      const at::Tensor& row,
      const Combine& combine,
      Moment deadline);

  // Returns the ranks' places, known from the first agreement on; empty before it. Any thread may
  // call this.
  std::vector<Place> places() const;

  // Wakes the thread in `meet`, and makes this and later calls throw. The other ranks notice.
  void close();

 private:
  struct Frame;

  Agreement lead(
      const Announcement& mine,
      const at::Tensor& row,
      const Combine& combine,
      Moment deadline);
  Agreement follow(const Announcement& mine, const at::Tensor& row, Moment deadline);
  // Rank 0 waits for the announcements of all others, and returns them by rank.
  std::vector<std::string> collect(Moment deadline);
  void send_frame(int socket, int64_t kind, const std::string& payload) const;
  Frame receive_frame(int socket) const;
  // Closes the group, after rank 0 has told the others, and throws `error`.
  [[noreturn]] void fail(const TransportError& error);
  int rank_of(size_t socket) const { return rank_ == 0 ? static_cast<int>(socket) + 1 : 0; }

  int rank_;
  int size_;
  std::vector<int> sockets_;
  std::atomic<bool> closed_{false};
  int64_t round_ = 0;
  mutable std::mutex places_mutex_;
  std::vector<Place> places_;
};

} // namespace anyrig::virtual_gpu
