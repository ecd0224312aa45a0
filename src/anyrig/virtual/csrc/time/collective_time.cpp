#include "time/collective_time.h"

#include "time/links.h"

#include <algorithm>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

// NCCL's own model of its latencies for small messages, protocol LL: src/graph/tuning.cc.
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

// A chain inside each node, a tree between them; up and down.
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

// Every pair has its own transfer; the part for other nodes leaves by a rank's own part of the
// network while the rest moves inside the node.
double all_to_all_seconds(const RingLinks& links, double bytes, int ranks) {
  const double share = bytes / ranks;
  const double here = static_cast<double>(ranks) / links.nodes;
  const double inside = seconds_over(share * (here - 1), links.inside.bytes_per_second);
  const double across = seconds_over(share * (ranks - here), links.across.bytes_per_second);
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
  const double others = static_cast<double>(count - 1) / count;
  // Into a transfer between two devices no other device's part of the network comes.
  const double alone = links.nodes > 1 ? links.across.bytes_per_second : rate;
  switch (kind) {
    case CollectiveKind::Barrier:
    case CollectiveKind::AllReduce:
      return all_reduce_seconds(links, bytes, count);
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
      return ring_latency(links, count - 1, links.nodes - 1) + seconds_over(others * bytes, rate);
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
      return ring_latency(links, count - 1, links.nodes - 1) + seconds_over(bytes, rate);
    case CollectiveKind::AllToAll:
      return all_to_all_seconds(links, bytes, count);
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
      return ring_latency(links, 1, 1) + seconds_over(others * bytes, alone);
    case CollectiveKind::Send:
    case CollectiveKind::Receive:
      return ring_latency(links, 1, 1) + seconds_over(bytes, alone);
  }
  return 0;
}

} // namespace anyrig::virtual_gpu
