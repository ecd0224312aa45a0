// What each rank tells all others when it enters a collective, before any data moves: which one it
// is, how many bytes it has for each of them and expects of each, and when it was ready.
//
//              gives            takes
//          to 0 to 1 to 2   of 0 of 1 of 2
//   rank 0   4    4    4      4    4    4      all_reduce of one float: all pairs agree
//   rank 1   4    4    4      4    4    4
//   rank 2   8    8    8      8    8    8      this rank has two floats, and everyone sees it
//
// NCCL would hang or mix the data up; here all ranks compare the same announcements, so all of them
// come to the same refusal.
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
  // Of a reduction; NCCL moves bytes otherwise, whatever they are.
  std::optional<c10d::ReduceOp::RedOpType> reduction;
  std::optional<c10::ScalarType> dtype;
  // Of the collectives that have one; else -1.
  int64_t root = -1;
  // The count of collectives in this group until now.
  int64_t sequence = 0;
  // The moment of the virtual clock at which this rank's stream came here.
  double ready = 0;
  Place place;
  // Whether this rank has all it gives, and room for all it takes: in ShapeOnly what is known.
  bool has_values = true;
  // By rank, in bytes.
  std::vector<int64_t> gives;
  std::vector<int64_t> takes;
};

// "all_reduce", "broadcast", ...
const char* name_of(CollectiveKind kind);

// As a tensor of the host that gloo can carry; its size depends on the number of ranks alone.
at::Tensor pack(const Announcement& announcement);
at::Tensor empty_package(int ranks);
Announcement unpack(const at::Tensor& package, int ranks);

// What is wrong, if these announcements, one a rank, are not of the same collective.
std::optional<std::string> find_disagreement(const std::vector<Announcement>& by_rank);

} // namespace anyrig::virtual_gpu
