// A send or a receive on this rank. It runs in a thread of its own for each peer and direction: on
// cards too, messages to different ranks do not wait for each other.
#pragma once

#include "collectives/announcement.h"
#include "collectives/failure.h"
#include "collectives/transport.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace anyrig::virtual_gpu {

struct PointToPoint {
  int peer = 0;
  // Of the call, on this side; from it the virtual moment and the place.
  Announcement announcement;
  int64_t bytes = 0;
  // A row of the host (host_bytes.h); in ShapeOnly undefined where values are not known. What is
  // sent is a copy.
  at::Tensor row;
  // Of a receive: whether values came.
  bool has_arrived = false;
};

// Both have `stream` busy with it, return the moment of the virtual clock at which this side is
// done if what came before is done at `free_from`, and raise DistBackendError. A send is done when
// the receiver has it, but nothing waits for that.
double send(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_from);
double receive(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_from);

} // namespace anyrig::virtual_gpu
