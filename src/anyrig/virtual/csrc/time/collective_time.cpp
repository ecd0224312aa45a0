#include "time/collective_time.h"

#include "time/links.h"

#include <set>
#include <vector>

namespace anyrig::virtual_gpu {

Place place_of(c10::DeviceIndex device) {
  return {devices()[device].position};
}

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::AllReduce:
      return "all_reduce";
    case CollectiveKind::Broadcast:
      return "broadcast";
    case CollectiveKind::Reduce:
      return "reduce";
    case CollectiveKind::AllGather:
      return "all_gather";
    case CollectiveKind::ReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::AllToAll:
      return "all_to_all";
    case CollectiveKind::Gather:
      return "gather";
    case CollectiveKind::Scatter:
      return "scatter";
    case CollectiveKind::Barrier:
      return "barrier";
    case CollectiveKind::Send:
      return "send";
    case CollectiveKind::Receive:
      return "recv";
  }
  return "";
}

double collective_seconds(CollectiveKind kind, double bytes, c10::ArrayRef<Place> ranks) {
  if (ranks.empty()) {
    return 0;
  }
  std::vector<int> positions;
  for (const auto& rank : ranks) {
    positions.push_back(static_cast<int>(rank.position));
  }
  const RingLinks links = ring_links(positions);
  const auto& coefficients = whole_rig()[positions.front()].gpu.coefficients.collective;
  return collective_seconds(coefficients, kind, bytes, links, static_cast<int>(ranks.size()));
}

int32_t count_nodes(c10::ArrayRef<Place> ranks) {
  std::set<int> nodes;
  for (const auto& rank : ranks) {
    nodes.insert(whole_rig()[rank.position].node);
  }
  return static_cast<int32_t>(nodes.size());
}

} // namespace anyrig::virtual_gpu
