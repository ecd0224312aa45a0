// What collectives cost: the ring or the tree of NCCL on the slowest link among the ranks.
//
// With n ranks and B bytes, of which each formula says whose, over a link of w bytes a second:
//
//   all-reduce, barrier    ring 2 (n - 1) / n B / w, or tree 2 B / w, which has fewer steps between
//                          nodes; B of a rank's tensor
//   all-gather             (n - 1) / n B / w; B of the whole result
//   reduce-scatter         (n - 1) / n B / w; B of a rank's whole input
//   broadcast, reduce      B / w; B of the tensor
//   all-to-all             (n - 1) / n B / w; B of all that a rank sends, to itself included
//   gather, scatter        (n - 1) / n B / w; B of all that the root has
//   send, receive          B / w
//
// That is what nccl-tests calls the size. To each come the latencies of its steps. One rank alone
// costs nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

enum class CollectiveKind : int64_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Gather,
  Scatter,
  Barrier,
  Send,
  Receive,
};

// Where a rank sits: the position of its device in the whole rig. Ranks may send theirs to each
// other as it lies in memory; several may sit on one device.
struct Place {
  int64_t position = 0;
};

// The place of a rank of this process that works on `device`.
Place place_of(c10::DeviceIndex device);

// Seconds from the moment at which all ranks take part until it is done on all of them. Of a
// message `ranks` are its ends, or the one that is known.
double collective_seconds(CollectiveKind kind, double bytes, c10::ArrayRef<Place> ranks);

} // namespace anyrig::virtual_gpu
