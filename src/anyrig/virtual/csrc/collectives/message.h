// A send or a receive on this rank. Each peer and direction has a thread of its own, because NCCL's
// messages to and from different ranks do not wait for each other either.
#pragma once

#include "collectives/announcement.h"
#include "collectives/failure.h"
#include "collectives/transport.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace anyrig::virtual_gpu {

struct PointToPoint {
  int peer = 0;
  // This side's announcement. A receive uses only its virtual time and its place.
  Announcement announcement;
  int64_t bytes = 0;
  // A CPU row (host_bytes.h), undefined in ShapeOnly where the values are unknown. A send has a
  // copy of the tensor.
  at::Tensor row;
  // For a receive: whether values arrived.
  bool has_arrived = false;
};

// Both functions move the message, occupy `stream` on the virtual clock, and return the virtual
// time at which this side is done, given that the communicator's earlier transfers are done at
// `free_at`. A send is done when the receiver has the data, but nothing waits for a send. Both
// raise DistBackendError.
double send(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at);
double receive(
    PointToPoint& message,
    Transport& transport,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at);

} // namespace anyrig::virtual_gpu
