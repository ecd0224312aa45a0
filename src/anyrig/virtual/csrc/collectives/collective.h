// One collective on this rank, from the announcement to the last byte. Runs in a thread of the
// group, without the GIL.
#pragma once

#include "collectives/announcement.h"
#include "collectives/failure.h"
#include "collectives/reduction.h"
#include "collectives/roll_call.h"
#include "collectives/transport.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// All tensors are CPU rows (host_bytes.h). A tensor is undefined where nothing is sent or received,
// and in ShapeOnly where the values are unknown.
struct Collective {
  Announcement announcement;
  // The size from which the clock computes the duration (time/collective_time.h).
  double bytes = 0;

  // Indexed by rank: the rows to send to each rank and to receive from it.
  std::vector<at::Tensor> send_rows;
  std::vector<at::Tensor> receive_rows;

  // With a reduction, the rows from all ranks are combined into `result`, on the ranks that define
  // it. An all_reduce uses only `result`, and splits it among the ranks.
  std::optional<Reduction> reduction;
  at::Tensor result;

  // Whether data moved. In ShapeOnly, data moves only if every rank has values.
  bool has_moved = false;
};

// Returns whether all rows are defined that the announcement promises to send or receive.
bool has_values(const Collective& collective);

// Lets the ranks agree on the collective, moves the data, and occupies `stream` on the virtual
// clock. Returns the virtual time at which the collective is done, given that the communicator's
// earlier transfers are done at `free_at`. Raises DistBackendError.
double perform(
    Collective& collective,
    Transport& transport,
    RollCall& roll_call,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at);

// Occupies `stream` for the duration of the collective from `start` on, the virtual time at which
// the last rank is ready. Returns the virtual time at which the collective ends.
double occupy_stream(
    const Collective& collective,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double start,
    c10::ArrayRef<Place> places);

} // namespace anyrig::virtual_gpu
