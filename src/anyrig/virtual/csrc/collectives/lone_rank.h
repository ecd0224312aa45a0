// How rank 0 answers the collectives of its groups by itself, in a rehearsal that runs no other
// rank.
//
// The ranks of a symmetric program make the same calls with the same sizes at the same time. So
// rank 0 knows what every other rank would announce and send: the same as rank 0.
//
//                 runs      assumed
//                 rank 0    rank 1    rank 2
//   ready at      1.25 s    1.25 s    1.25 s
//   all_reduce    x         x         x         x + x + x
//   all_gather    x         x         x         x, x, x
//   all_to_all    x y z     x y z     x y z     x, x, x: what each rank sends to rank 0
//
// Only the ranks' places differ: rank n uses GPU n of the rig. A call in which the ranks cannot be
// alike raises an error. What only another rank has, such as the data of a broadcast's root, is
// unknown, like all values in ShapeOnly.
#pragma once

#include "collectives/collective.h"
#include "collectives/failure.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// Checks that rank 0 is the member of `group` that this process runs, and that the default group
// has a rank for each GPU of the rig. Raises ValueError.
void check_lone_group(const Membership& group);

// Returns the places of the ranks of `group`, if rank n uses GPU n of the rig, and this rank uses
// the GPU at `own`.
std::vector<Place> places_of(const Membership& group, Place own);

// Returns for each rank of `group` whether it is on another node than rank 0.
std::vector<bool> are_on_other_nodes(const Membership& group);

// Returns why the ranks cannot be alike in this collective, as the reason that an error gives: the
// parts that they send or receive have different sizes. None if they can.
std::optional<std::string> why_not_alike(const Announcement& announcement);

// Whether only another rank has the data that `rank` receives: the root of a broadcast or scatter.
bool needs_data_of_root(const Announcement& announcement, int rank);

// Returns the reason that an error gives for a message to or from `peer`, which does not run.
std::string why_no_message(const Membership& group, const char* name, int peer);

// As `perform`, without other ranks. Needs no GIL.
double perform_alone(
    Collective& collective,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at);

// What to do if one rank cannot answer a call, as the end of an error message.
extern const char* const kLoneRankRemedy;

} // namespace anyrig::virtual_gpu
