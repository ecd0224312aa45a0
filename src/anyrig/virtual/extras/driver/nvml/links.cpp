// Between cards: NVLink joins those of one kind in a node, others meet at the host's PCIe bridge.
#include "session.h"

#include <algorithm>

using namespace anyrig::nvml;

namespace {

constexpr unsigned kMostLinks = 18;                       // NVML_NVLINK_MAX_LINKS
constexpr int kToCard = 0, kToSwitch = 2;                 // nvmlIntNvLinkDeviceType_t
constexpr int kInternal = 0, kHostBridge = 30;            // nvmlGpuTopologyLevel_t
constexpr int kP2pOk = 0, kP2pNotSupported = 5;           // nvmlGpuP2PStatus_t
constexpr unsigned kP2pNvlink = 2, kP2pIndices = 5;       // nvmlGpuP2PCapsIndex_t
constexpr unsigned kNvlinkSpeedCommon = 90, kNvlinkCount = 91;  // NVML_FI_DEV_…
constexpr unsigned kNvlinkSpeedFirst = 84, kNvlinkSpeedLast = 89;
constexpr unsigned kUnsignedInt = 1;                      // nvmlValueType_t

bool joined(const Card& one, const Card& other) {
  return one.index != other.index && one.nvlinks > 0 && one.name == other.name;
}

/// The cards at the other end of a card's links.
std::vector<const Card*> peers_of(const Rig& rig, const Card& card) {
  std::vector<const Card*> peers;
  for (const Card& other : rig.cards)
    if (joined(card, other)) peers.push_back(&other);
  return peers;
}

bool is_switched(const Rig& rig) {
  // A switch joins every card with every other. In a node of several kinds the links are direct.
  return rig.cards.size() > 1 && std::all_of(rig.cards.begin(), rig.cards.end(), [&](auto& card) {
           return peers_of(rig, card).size() + 1 == rig.cards.size();
         });
}

/// Calls `answer(rig, card, peers)` for a link that the card has.
template <class Answer>
int with_link(const void* handle, unsigned link, Answer&& answer) {
  return with_card(handle, [&](const Rig& rig, const Card& card) -> int {
    if (link >= kMostLinks) return kInvalidArgument;
    if (link >= card.nvlinks) return card.nvlinks == 0 ? kNotSupported : kInvalidArgument;
    return answer(rig, card, peers_of(rig, card));
  });
}

template <class Answer>
int with_two_cards(const void* one, const void* other, Answer&& answer) {
  return with_card(one, [&](const Rig&, const Card& first) {
    return with_card(other, [&](const Rig&, const Card& second) { return answer(first, second); });
  });
}

}  // namespace

NVML_FUNCTION nvmlDeviceGetNvLinkState(const void* handle, unsigned link, unsigned* out) {
  return with_link(handle, link, [&](const Rig&, const Card&, const auto& peers) {
    return give(peers.empty() ? 0u : 1u, out);
  });
}
NVML_FUNCTION nvmlDeviceGetNvLinkVersion(const void* handle, unsigned link, unsigned* out) {
  return with_link(handle, link, [&](const Rig&, const Card& card, const auto&) {
    return give(card.nvlink_version, out);
  });
}
NVML_FUNCTION nvmlDeviceGetNvLinkCapability(
    const void* handle,
    unsigned link,
    unsigned,
    unsigned* out) {
  return with_link(
      handle, link, [&](const Rig&, const Card&, const auto&) { return give(1u, out); });
}
NVML_FUNCTION nvmlDeviceGetNvLinkRemoteDeviceType(const void* handle, unsigned link, int* out) {
  return with_link(handle, link, [&](const Rig& rig, const Card&, const auto& peers) -> int {
    if (peers.empty()) return kNotSupported;
    return give(is_switched(rig) ? kToSwitch : kToCard, out);
  });
}
NVML_FUNCTION nvmlDeviceGetPciInfo_v3(const void* handle, Pci* out);
NVML_FUNCTION nvmlDeviceGetNvLinkRemotePciInfo_v2(const void* handle, unsigned link, Pci* out) {
  return with_link(handle, link, [&](const Rig& rig, const Card&, const auto& peers) -> int {
    if (peers.empty() || is_switched(rig)) return kNotSupported;
    return nvmlDeviceGetPciInfo_v3(peers[link % peers.size()], out);
  });
}

NVML_FUNCTION nvmlDeviceGetFieldValues(const void* handle, int count, FieldValue* values) {
  return with_card(handle, [&](const Rig&, const Card& card) {
    if (values == nullptr || count < 0) return kInvalidArgument;
    for (FieldValue* value = values; value != values + count; ++value) {
      const bool is_speed = value->field == kNvlinkSpeedCommon ||
          (value->field >= kNvlinkSpeedFirst && value->field <= kNvlinkSpeedLast);
      value->timestamp = value->latency = 0;
      value->type = kUnsignedInt;
      value->as_bytes = 0;
      value->result =
          card.nvlinks > 0 && (is_speed || value->field == kNvlinkCount) ? kSuccess : kNotSupported;
      if (value->result == kSuccess)
        value->as_unsigned = is_speed ? card.nvlink_megabytes_per_second : card.nvlinks;
    }
    return kSuccess;
  });
}

NVML_FUNCTION nvmlDeviceGetTopologyCommonAncestor(const void* one, const void* other, int* out) {
  return with_two_cards(one, other, [&](const Card& first, const Card& second) {
    return give(first.index == second.index ? kInternal : kHostBridge, out);
  });
}
NVML_FUNCTION nvmlDeviceGetP2PStatus(const void* one, const void* other, unsigned index, int* out) {
  return with_two_cards(one, other, [&](const Card& first, const Card& second) -> int {
    if (index >= kP2pIndices || first.index == second.index) return kInvalidArgument;
    return give(index != kP2pNvlink || joined(first, second) ? kP2pOk : kP2pNotSupported, out);
  });
}
NVML_FUNCTION nvmlDeviceOnSameBoard(const void* one, const void* other, int* out) {
  return with_two_cards(one, other, [&](const Card& first, const Card& second) {
    return give(first.index == second.index ? 1 : 0, out);
  });
}
