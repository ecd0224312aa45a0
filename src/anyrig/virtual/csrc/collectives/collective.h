// One collective on this rank, from the announcement to the last byte. It runs in a thread of the
// group and needs no GIL.
#pragma once

#include "collectives/announcement.h"
#include "collectives/failure.h"
#include "collectives/reduction.h"
#include "collectives/transport.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace anyrig::virtual_gpu {

// All tensors are rows of the host (host_bytes.h); undefined where nothing goes, and in ShapeOnly
// where values are not known.
struct Collective {
  Announcement announcement;
  // The size by which the clock charges.
  double bytes = 0;

  // What this rank has for each, and what it gets of each.
  std::vector<at::Tensor> gives;
  std::vector<at::Tensor> takes;

  // With a reduction, what comes of the ranks is combined into `result`, on the ranks that have
  // one. An all_reduce has only this: it splits the row among the ranks.
  std::optional<Reduction> reduction;
  at::Tensor result;

  // Whether data moved: in ShapeOnly, if every rank had values.
  bool has_moved = false;
};

// Whether every row is there that the announcement promises bytes for.
bool has_values(const Collective& collective);

// Announces the collective, compares, moves the data, and has `stream` busy with it. Returns the
// moment of the virtual clock at which it is done, if what came before is done at `free_from`.
// Raises DistBackendError.
double perform(
    Collective& collective,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_from);

} // namespace anyrig::virtual_gpu
