#ifdef USE_C10D_GLOO

#include "collectives/lone_rank.h"

#include "device/device.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace anyrig::virtual_gpu {

const char* const kLoneRankRemedy =
    "rehearse fewer ranks, each in a process of its own: without --ranks, and with --device all "
    "--shape-only";

namespace {

uint64_t global_rank_of(const Membership& group, int rank) {
  return group.global_ranks.empty() ? static_cast<uint64_t>(rank) : group.global_ranks.at(rank);
}

void copy_unless_same(const at::Tensor& to, const at::Tensor& from) {
  if (to.defined() && from.defined() && to.data_ptr() != from.data_ptr()) {
    to.copy_(from);
  }
}

// Fills what this rank receives. Returns whether the values are known.
bool answer(Collective& collective, const Membership& group) {
  const auto& announcement = collective.announcement;
  if (!announcement.has_values || needs_data_of_root(announcement, group.rank)) {
    return false;
  }
  const auto root = announcement.root < 0 ? group.rank : static_cast<int>(announcement.root);
  if (!collective.reduction.has_value()) {
    for (const auto& row : collective.receive_rows) {
      copy_unless_same(row, collective.send_rows[root]);
    }
    return true;
  }
  if (collective.result.defined()) {
    const bool is_in_place = announcement.kind == CollectiveKind::AllReduce;
    const auto& mine = is_in_place ? collective.result : collective.send_rows[root];
    const std::vector<at::Tensor> of_all(group.size, collective.reduction->prepare(mine));
    collective.result.copy_(collective.reduction->combine(of_all));
  }
  return true;
}

} // namespace

std::vector<Place> places_of(const Membership& group, Place own) {
  std::vector<Place> places;
  places.reserve(group.size);
  for (int rank = 0; rank < group.size; ++rank) {
    places.push_back({static_cast<int64_t>(global_rank_of(group, rank))});
  }
  places[group.rank] = own;
  return places;
}

void check_lone_group(const Membership& group) {
  const auto ranks = static_cast<uint64_t>(whole_rig().size());
  const bool is_whole = !group.global_ranks.empty() || static_cast<uint64_t>(group.size) == ranks;
  TORCH_CHECK_VALUE(
      is_whole && global_rank_of(group, group.rank) == 0, "this rehearsal runs rank 0 of ", ranks,
      " ranks and no other (--ranks), and the program "
      "makes a group of ",
      group.size, " ranks as rank ", group.rank,
      ". Let the program take RANK "
      "and WORLD_SIZE from its environment, and start no ranks itself; or ",
      kLoneRankRemedy);
}

std::vector<bool> are_on_other_nodes(const Membership& group) {
  const auto& rig = whole_rig();
  std::vector<bool> elsewhere;
  elsewhere.reserve(group.size);
  for (int rank = 0; rank < group.size; ++rank) {
    elsewhere.push_back(rig.at(global_rank_of(group, rank)).node != rig.front().node);
  }
  return elsewhere;
}

std::optional<std::string> why_not_alike(const Announcement& announcement) {
  std::vector<int64_t> bytes = announcement.send_bytes;
  bytes.insert(bytes.end(), announcement.receive_bytes.begin(), announcement.receive_bytes.end());
  if (announcement.root >= 0) { // most ranks send or receive nothing
    bytes.erase(std::remove(bytes.begin(), bytes.end(), 0), bytes.end());
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (least == bytes.end() || *least == *most) {
    return std::nullopt;
  }
  return c10::str(
      "its parts have ", *least, " to ", *most,
      " bytes, and this rehearsal runs rank 0 alone "
      "(--ranks), for which the parts of all ranks must be equal. Make them equal, or ",
      kLoneRankRemedy);
}

bool needs_data_of_root(const Announcement& announcement, int rank) {
  const bool is_from_root = announcement.kind == CollectiveKind::Broadcast ||
      announcement.kind == CollectiveKind::Scatter;
  return is_from_root && announcement.root != rank;
}

std::string why_no_message(const Membership& group, const char* name, int peer) {
  return c10::str(
      name, " with rank ", peer,
      " of this group: this rehearsal runs rank 0 alone (--ranks), and "
      "a message between two of its ",
      group.size, " ranks, as in a pipeline, needs both; ", kLoneRankRemedy);
}

double perform_alone(
    Collective& collective,
    const CollectiveCall& call,
    const c10::Stream& stream,
    double free_at) {
  const c10::InferenceMode inference_mode; // as in `perform`
  const auto& announcement = collective.announcement;
  collective.has_moved = answer(collective, call.group);
  return occupy_stream(
      collective, call, stream, std::max(announcement.ready, free_at),
      places_of(call.group, announcement.place));
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
