// The time of collectives: NCCL's ring or tree algorithm over the slowest link between the ranks.
//
// For n ranks and a link of w bytes per second, where B is the size that nccl-tests reports:
//
//   all-reduce, barrier    ring: 2 (n - 1) / n B / w; tree: 2 B / w, with fewer steps between nodes
//                          B: bytes of one rank's tensor
//   all-gather             (n - 1) / n B / w; B: bytes of the result
//   reduce-scatter         (n - 1) / n B / w; B: bytes of one rank's input
//   broadcast, reduce      B / w; B: bytes of the tensor
//   all-to-all             (n - 1) / n B / w; B: bytes that a rank sends, including to itself
//   gather, scatter        (n - 1) / n B / w; B: bytes of the root's whole data
//   send, receive          B / w
//
// The latencies of the steps are added. A collective of one rank takes no time.
#pragma once

#include "time/coefficients.h"
#include "time/ring.h"

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

// Returns the seconds from the time at which all ranks have joined until the collective is done on
// all ranks. For a message, `ranks` is the number of its ends that are known.
double collective_seconds(
    const CollectiveCoefficients& coefficients,
    CollectiveKind kind,
    double bytes,
    const RingLinks& links,
    int ranks);

} // namespace anyrig::virtual_gpu
