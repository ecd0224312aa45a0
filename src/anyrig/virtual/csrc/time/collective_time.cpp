#include "time/collective_time.h"

#include "time/links.h"

#include <vector>

namespace anyrig::virtual_gpu {

Place place_of(c10::DeviceIndex device) {
  return {devices()[device].position};
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

} // namespace anyrig::virtual_gpu
