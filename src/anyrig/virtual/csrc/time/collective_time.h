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

// The location of a rank: the position of its device in the whole rig. Ranks exchange Places as raw
// bytes. Several ranks may share a device.
struct Place {
  int64_t position = 0;
};

// Returns the place of a rank of this process that uses `device`.
Place place_of(c10::DeviceIndex device);

// Returns the seconds from the time at which all ranks have joined until the collective is done on
// all ranks. For a message, `ranks` holds its two ends, or only the end that is known.
double collective_seconds(CollectiveKind kind, double bytes, c10::ArrayRef<Place> ranks);

} // namespace anyrig::virtual_gpu
