// What each rank announces to the other ranks when it enters a collective, before any data moves:
// the collective, the bytes that it sends to and expects from each rank, and when its stream is
// ready.
//
//          sends, in bytes   expects, in bytes
//           to 0 to 1 to 2   from 0 from 1 from 2
//   rank 0     4    4    4        4      4      4    all_reduce of one float
//   rank 1     4    4    4        4      4      4
//   rank 2     8    8    8        8      8      8    two floats: ranks 0 and 1 expect 4 bytes
//
// NCCL would hang or corrupt the data. Here every rank compares the same announcements, so every
// rank raises the same error.
#pragma once

#include "time/collective_time.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

struct Announcement {
  CollectiveKind kind = CollectiveKind::Barrier;
  // Set for reductions only: other collectives move bytes of any dtype.
  std::optional<c10d::ReduceOp::RedOpType> reduction;
  std::optional<c10::ScalarType> dtype;
  // The root rank; -1 for collectives without a root.
  int64_t root = -1;
  // The number of this collective in its group, counted from 1.
  int64_t sequence = 0;
  // The virtual time, in seconds, at which this rank's stream is ready.
  double ready = 0;
  Place place;
  // Whether this rank has all data that it sends and memory for all that it receives. In ShapeOnly:
  // whether the values are known.
  bool has_values = true;
  // Indexed by rank, in bytes.
  std::vector<int64_t> send_bytes;
  std::vector<int64_t> receive_bytes;
};

// Serializes an announcement into a CPU tensor that gloo can send. Its size depends only on the
// number of ranks.
at::Tensor pack(const Announcement& announcement);
at::Tensor empty_package(int ranks);
Announcement unpack(const at::Tensor& package, int ranks);

// Returns the first mismatch between these announcements, one for each rank; none if they match.
std::optional<std::string> find_disagreement(const std::vector<Announcement>& by_rank);

} // namespace anyrig::virtual_gpu
