#include "time/collective_time.h"

#include "time/links.h"

#include <algorithm>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

// Latencies of NCCL's own model for small messages with protocol LL: src/graph/tuning.cc.
constexpr double kBaseSeconds = 6.6e-6;
constexpr double kNvlinkStepSeconds = 0.6e-6;
constexpr double kPcieStepSeconds = 1.0e-6;
constexpr double kRingNetworkStepSeconds = 2.7e-6;
constexpr double kTreeNetworkStepSeconds = 5.0e-6;

double step_seconds(LinkKind kind) {
  return kind == LinkKind::Pcie ? kPcieStepSeconds : kNvlinkStepSeconds;
}

double seconds_over(double bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
}

// Between nodes, a ring of n ranks on m nodes crosses m of its n links.
double ring_latency(const RingLinks& links, int steps, int steps_between_nodes) {
  const int between = links.nodes > 1 ? steps_between_nodes : 0;
  return kBaseSeconds + (steps - between) * step_seconds(links.inside.kind) +
      between * kRingNetworkStepSeconds;
}

// A chain inside each node and a tree between the nodes, up and down.
double tree_latency(const RingLinks& links, int ranks) {
  return kBaseSeconds +
      2 * ((ranks / links.nodes - 1) * step_seconds(links.inside.kind) +
           std::ceil(std::log2(links.nodes)) * kTreeNetworkStepSeconds);
}

double all_reduce_seconds(const RingLinks& links, double bytes, int ranks) {
  const double rate = links.bytes_per_second();
  const double ring = ring_latency(links, 2 * (ranks - 1), 2 * (links.nodes - 1)) +
      seconds_over(2 * bytes * (ranks - 1) / ranks, rate);
  const double tree = tree_latency(links, ranks) + seconds_over(2 * bytes, rate);
  return std::min(ring, tree);
}

// Each pair of ranks has its own transfer. The data for other nodes leaves over each rank's share
// of the network, concurrently with the transfers inside the node.
double all_to_all_seconds(const RingLinks& links, double bytes, int ranks) {
  const double share = bytes / ranks;
  const double ranks_per_node = static_cast<double>(ranks) / links.nodes;
  const double inside = seconds_over(share * (ranks_per_node - 1), links.inside.bytes_per_second);
  const double across =
      seconds_over(share * (ranks - ranks_per_node), links.across.bytes_per_second);
  return ring_latency(links, 1, 1) + std::max(inside, across);
}

} // namespace

Place place_of(c10::DeviceIndex device) {
  return {devices()[device].position};
}

double collective_seconds(CollectiveKind kind, double bytes, c10::ArrayRef<Place> ranks) {
  const bool is_message = kind == CollectiveKind::Send || kind == CollectiveKind::Receive;
  const int count = static_cast<int>(ranks.size());
  if (count == 0 || (count == 1 && !is_message)) {
    return 0;
  }
  std::vector<int> positions;
  for (const auto& rank : ranks) {
    positions.push_back(static_cast<int>(rank.position));
  }
  const RingLinks links = ring_links(positions);
  const double rate = links.bytes_per_second();
  const double other_fraction = static_cast<double>(count - 1) / count;
  // A transfer between two devices gets only one device's share of the network.
  const double single_rate = links.nodes > 1 ? links.across.bytes_per_second : rate;
  switch (kind) {
    case CollectiveKind::Barrier:
    case CollectiveKind::AllReduce:
      return all_reduce_seconds(links, bytes, count);
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
      return ring_latency(links, count - 1, links.nodes - 1) +
          seconds_over(other_fraction * bytes, rate);
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
      return ring_latency(links, count - 1, links.nodes - 1) + seconds_over(bytes, rate);
    case CollectiveKind::AllToAll:
      return all_to_all_seconds(links, bytes, count);
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
      return ring_latency(links, 1, 1) + seconds_over(other_fraction * bytes, single_rate);
    case CollectiveKind::Send:
    case CollectiveKind::Receive:
      return ring_latency(links, 1, 1) + seconds_over(bytes, single_rate);
  }
  return 0;
}

} // namespace anyrig::virtual_gpu
