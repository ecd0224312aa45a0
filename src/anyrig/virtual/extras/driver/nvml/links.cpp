// Between GPUs: NVLink joins those of one kind in a node, others meet at the host's PCIe bridge.
#include "session.h"

#include <algorithm>

using namespace anyrig::nvml;

namespace {

constexpr unsigned kMostLinks = 18;                       // NVML_NVLINK_MAX_LINKS
constexpr int kToGpu = 0, kToSwitch = 2;                 // nvmlIntNvLinkDeviceType_t
constexpr int kInternal = 0, kHostBridge = 30;            // nvmlGpuTopologyLevel_t
constexpr int kP2pOk = 0, kP2pNotSupported = 5;           // nvmlGpuP2PStatus_t
constexpr unsigned kP2pNvlink = 2, kP2pIndices = 5;       // nvmlGpuP2PCapsIndex_t
constexpr unsigned kNvlinkSpeedCommon = 90, kNvlinkCount = 91;  // NVML_FI_DEV_…
constexpr unsigned kNvlinkSpeedFirst = 84, kNvlinkSpeedLast = 89;
constexpr unsigned kUnsignedInt = 1;                      // nvmlValueType_t

bool joined(const Gpu& one, const Gpu& other) {
  return one.index != other.index && one.nvlinks > 0 && one.name == other.name;
}

/// The GPUs at the other end of a GPU's links.
std::vector<const Gpu*> peers_of(const Rig& rig, const Gpu& gpu) {
  std::vector<const Gpu*> peers;
  for (const Gpu& other : rig.gpus)
    if (joined(gpu, other)) peers.push_back(&other);
  return peers;
}

bool is_switched(const Rig& rig) {
  // A switch joins every GPU with every other. In a node of several kinds the links are direct.
  return rig.gpus.size() > 1 && std::all_of(rig.gpus.begin(), rig.gpus.end(), [&](auto& gpu) {
           return peers_of(rig, gpu).size() + 1 == rig.gpus.size();
         });
}

/// Calls `answer(rig, gpu, peers)` for a link that the GPU has.
template <class Answer>
int with_link(const void* handle, unsigned link, Answer&& answer) {
  return with_gpu(handle, [&](const Rig& rig, const Gpu& gpu) -> int {
    if (link >= kMostLinks) return kInvalidArgument;
    if (link >= gpu.nvlinks) return gpu.nvlinks == 0 ? kNotSupported : kInvalidArgument;
    return answer(rig, gpu, peers_of(rig, gpu));
  });
}

template <class Answer>
int with_two_gpus(const void* one, const void* other, Answer&& answer) {
  return with_gpu(one, [&](const Rig&, const Gpu& first) {
    return with_gpu(other, [&](const Rig&, const Gpu& second) { return answer(first, second); });
  });
}

}  // namespace

NVML_FUNCTION nvmlDeviceGetNvLinkState(const void* handle, unsigned link, unsigned* out) {
  return with_link(handle, link, [&](const Rig&, const Gpu&, const auto& peers) {
    return give(peers.empty() ? 0u : 1u, out);
  });
}
NVML_FUNCTION nvmlDeviceGetNvLinkVersion(const void* handle, unsigned link, unsigned* out) {
  return with_link(handle, link, [&](const Rig&, const Gpu& gpu, const auto&) {
    return give(gpu.nvlink_version, out);
  });
}
NVML_FUNCTION nvmlDeviceGetNvLinkCapability(
    const void* handle,
    unsigned link,
    unsigned,
    unsigned* out) {
  return with_link(
      handle, link, [&](const Rig&, const Gpu&, const auto&) { return give(1u, out); });
}
NVML_FUNCTION nvmlDeviceGetNvLinkRemoteDeviceType(const void* handle, unsigned link, int* out) {
  return with_link(handle, link, [&](const Rig& rig, const Gpu&, const auto& peers) -> int {
    if (peers.empty()) return kNotSupported;
    return give(is_switched(rig) ? kToSwitch : kToGpu, out);
  });
}
NVML_FUNCTION nvmlDeviceGetPciInfo_v3(const void* handle, Pci* out);
NVML_FUNCTION nvmlDeviceGetNvLinkRemotePciInfo_v2(const void* handle, unsigned link, Pci* out) {
  return with_link(handle, link, [&](const Rig& rig, const Gpu&, const auto& peers) -> int {
    if (peers.empty() || is_switched(rig)) return kNotSupported;
    return nvmlDeviceGetPciInfo_v3(peers[link % peers.size()], out);
  });
}

NVML_FUNCTION nvmlDeviceGetFieldValues(const void* handle, int count, FieldValue* values) {
  return with_gpu(handle, [&](const Rig&, const Gpu& gpu) {
    if (values == nullptr || count < 0) return kInvalidArgument;
    for (FieldValue* value = values; value != values + count; ++value) {
      const bool is_speed = value->field == kNvlinkSpeedCommon ||
          (value->field >= kNvlinkSpeedFirst && value->field <= kNvlinkSpeedLast);
      value->timestamp = value->latency = 0;
      value->type = kUnsignedInt;
      value->as_bytes = 0;
      value->result =
          gpu.nvlinks > 0 && (is_speed || value->field == kNvlinkCount) ? kSuccess : kNotSupported;
      if (value->result == kSuccess)
        value->as_unsigned = is_speed ? gpu.nvlink_megabytes_per_second : gpu.nvlinks;
    }
    return kSuccess;
  });
}

NVML_FUNCTION nvmlDeviceGetTopologyCommonAncestor(const void* one, const void* other, int* out) {
  return with_two_gpus(one, other, [&](const Gpu& first, const Gpu& second) {
    return give(first.index == second.index ? kInternal : kHostBridge, out);
  });
}
NVML_FUNCTION nvmlDeviceGetP2PStatus(const void* one, const void* other, unsigned index, int* out) {
  return with_two_gpus(one, other, [&](const Gpu& first, const Gpu& second) -> int {
    if (index >= kP2pIndices || first.index == second.index) return kInvalidArgument;
    return give(index != kP2pNvlink || joined(first, second) ? kP2pOk : kP2pNotSupported, out);
  });
}
NVML_FUNCTION nvmlDeviceOnSameBoard(const void* one, const void* other, int* out) {
  return with_two_gpus(one, other, [&](const Gpu& first, const Gpu& second) {
    return give(first.index == second.index ? 1 : 0, out);
  });
}
