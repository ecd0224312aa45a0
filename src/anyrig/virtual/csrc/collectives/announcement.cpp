#ifdef USE_C10D_GLOO

#include "collectives/announcement.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <cstring>

namespace anyrig::virtual_gpu {
namespace {

// The part of an announcement whose size does not depend on the number of ranks.
struct AnnouncementHead {
  CollectiveKind kind;
  int64_t reduction; // -1: none
  int64_t dtype; // -1: none
  int64_t root;
  int64_t sequence;
  double ready;
  Place place;
  int64_t has_values;
};

size_t package_bytes(size_t ranks) {
  return sizeof(AnnouncementHead) + 2 * ranks * sizeof(int64_t);
}

std::string describe(const Announcement& announcement) {
  static const char* const kReductions[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                            "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  std::string text = name_of(announcement.kind);
  if (announcement.reduction.has_value()) {
    text += c10::str("(", kReductions[*announcement.reduction], ")");
  }
  if (announcement.dtype.has_value()) {
    text += c10::str(" of ", *announcement.dtype);
  }
  if (announcement.root >= 0) {
    text += c10::str(" with root ", announcement.root);
  }
  return text;
}

bool same_collective(const Announcement& a, const Announcement& b) {
  return a.kind == b.kind && a.reduction == b.reduction && a.dtype == b.dtype && a.root == b.root;
}

} // namespace

at::Tensor empty_package(int ranks) {
  return at::empty({static_cast<int64_t>(package_bytes(ranks))}, at::kByte);
}

at::Tensor pack(const Announcement& announcement) {
  const AnnouncementHead head{
      announcement.kind,
      announcement.reduction.has_value() ? static_cast<int64_t>(*announcement.reduction) : -1,
      announcement.dtype.has_value() ? static_cast<int64_t>(*announcement.dtype) : -1,
      announcement.root,
      announcement.sequence,
      announcement.ready,
      announcement.place,
      announcement.has_values ? 1 : 0};
  const size_t sizes_bytes = announcement.send_bytes.size() * sizeof(int64_t);
  auto package = empty_package(static_cast<int>(announcement.send_bytes.size()));
  auto* to = static_cast<char*>(package.mutable_data_ptr());
  std::memcpy(to, &head, sizeof head);
  std::memcpy(to + sizeof head, announcement.send_bytes.data(), sizes_bytes);
  std::memcpy(to + sizeof head + sizes_bytes, announcement.receive_bytes.data(), sizes_bytes);
  return package;
}

Announcement unpack(const at::Tensor& package, int ranks) {
  AnnouncementHead head;
  const size_t sizes_bytes = ranks * sizeof(int64_t);
  const auto* from = static_cast<const char*>(package.const_data_ptr());
  std::memcpy(&head, from, sizeof head);
  Announcement announcement;
  announcement.kind = head.kind;
  if (head.reduction >= 0) {
    announcement.reduction = static_cast<c10d::ReduceOp::RedOpType>(head.reduction);
  }
  if (head.dtype >= 0) {
    announcement.dtype = static_cast<c10::ScalarType>(head.dtype);
  }
  announcement.root = head.root;
  announcement.sequence = head.sequence;
  announcement.ready = head.ready;
  announcement.place = head.place;
  announcement.has_values = head.has_values != 0;
  announcement.send_bytes.resize(ranks);
  announcement.receive_bytes.resize(ranks);
  std::memcpy(announcement.send_bytes.data(), from + sizeof head, sizes_bytes);
  std::memcpy(announcement.receive_bytes.data(), from + sizeof head + sizes_bytes, sizes_bytes);
  return announcement;
}

std::optional<std::string> find_disagreement(const std::vector<Announcement>& by_rank) {
  for (size_t i = 1; i < by_rank.size(); ++i) {
    if (!same_collective(by_rank[0], by_rank[i])) {
      return c10::str(
          "rank 0 called ", describe(by_rank[0]), " (collective ", by_rank[0].sequence,
          " of this group), and rank ", i, " called ", describe(by_rank[i]), " (collective ",
          by_rank[i].sequence, ")");
    }
  }
  for (size_t i = 0; i < by_rank.size(); ++i) {
    for (size_t j = 0; j < by_rank.size(); ++j) {
      if (by_rank[i].send_bytes[j] != by_rank[j].receive_bytes[i]) {
        return c10::str(
            "rank ", i, " sends ", by_rank[i].send_bytes[j], " bytes to rank ", j,
            ", which expects ", by_rank[j].receive_bytes[i]);
      }
    }
  }
  return std::nullopt;
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
