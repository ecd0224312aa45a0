#include "time/cost/collective_cost.h"

#include "time/cost/cost.h"

#include <algorithm>
#include <cmath>

namespace anyrig::virtual_gpu {
namespace {

double step_seconds(const CollectiveCoefficients& coefficients, LinkKind kind) {
  return kind == LinkKind::Pcie ? coefficients.pcie_step_seconds : coefficients.link_step_seconds;
}

double seconds_over(
    const CollectiveCoefficients& coefficients,
    double bytes,
    double bytes_per_second) {
  return quotient(bytes, bytes_per_second * coefficients.bandwidth_fraction);
}

// Between nodes, a ring of n ranks on m nodes crosses m of its n links.
double ring_latency(
    const CollectiveCoefficients& coefficients,
    const RingLinks& links,
    int steps,
    int steps_between_nodes) {
  const int between = links.nodes > 1 ? steps_between_nodes : 0;
  return coefficients.base_seconds +
      (steps - between) * step_seconds(coefficients, links.inside.kind) +
      between * coefficients.ring_network_step_seconds;
}

// A chain inside each node and a tree between the nodes, up and down.
double tree_latency(const CollectiveCoefficients& coefficients, const RingLinks& links, int ranks) {
  return coefficients.base_seconds +
      2 *
      ((ranks / links.nodes - 1) * step_seconds(coefficients, links.inside.kind) +
       std::ceil(std::log2(links.nodes)) * coefficients.tree_network_step_seconds);
}

double all_reduce_seconds(
    const CollectiveCoefficients& coefficients,
    const RingLinks& links,
    double bytes,
    int ranks) {
  const double rate = links.bytes_per_second();
  const double ring = ring_latency(coefficients, links, 2 * (ranks - 1), 2 * (links.nodes - 1)) +
      seconds_over(coefficients, 2 * bytes * (ranks - 1) / ranks, rate);
  const double tree =
      tree_latency(coefficients, links, ranks) + seconds_over(coefficients, 2 * bytes, rate);
  return std::min(ring, tree);
}

// Each pair of ranks has its own transfer. The data for other nodes leaves over each rank's share
// of the network, concurrently with the transfers inside the node.
double all_to_all_seconds(
    const CollectiveCoefficients& coefficients,
    const RingLinks& links,
    double bytes,
    int ranks) {
  const double share = bytes / ranks;
  const double ranks_per_node = static_cast<double>(ranks) / links.nodes;
  const double inside =
      seconds_over(coefficients, share * (ranks_per_node - 1), links.inside.bytes_per_second);
  const double across =
      seconds_over(coefficients, share * (ranks - ranks_per_node), links.across.bytes_per_second);
  return ring_latency(coefficients, links, 1, 1) + std::max(inside, across);
}

double seconds_of_protocol(
    const CollectiveCoefficients& coefficients,
    CollectiveKind kind,
    double bytes,
    const RingLinks& links,
    int ranks) {
  const bool is_message = kind == CollectiveKind::Send || kind == CollectiveKind::Receive;
  if (ranks == 0 || (ranks == 1 && !is_message)) {
    return 0;
  }
  const double rate = links.bytes_per_second();
  const double other_fraction = static_cast<double>(ranks - 1) / ranks;
  // A transfer between two devices gets only one device's share of the network.
  const double single_rate = links.nodes > 1 ? links.across.bytes_per_second : rate;
  switch (kind) {
    case CollectiveKind::Barrier:
    case CollectiveKind::AllReduce:
      return all_reduce_seconds(coefficients, links, bytes, ranks);
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
      return ring_latency(coefficients, links, ranks - 1, links.nodes - 1) +
          seconds_over(coefficients, other_fraction * bytes, rate);
    case CollectiveKind::Broadcast:
    case CollectiveKind::Reduce:
      return ring_latency(coefficients, links, ranks - 1, links.nodes - 1) +
          seconds_over(coefficients, bytes, rate);
    case CollectiveKind::AllToAll:
      return all_to_all_seconds(coefficients, links, bytes, ranks);
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
      return ring_latency(coefficients, links, 1, 1) +
          seconds_over(coefficients, other_fraction * bytes, single_rate);
    case CollectiveKind::Send:
    case CollectiveKind::Receive:
      return ring_latency(coefficients, links, 1, 1) +
          seconds_over(coefficients, bytes, single_rate);
  }
  return 0;
}

} // namespace

double collective_seconds(
    const CollectiveCoefficients& coefficients,
    CollectiveKind kind,
    double bytes,
    const RingLinks& links,
    int ranks) {
  CollectiveCoefficients low_latency = coefficients;
  low_latency.bandwidth_fraction = coefficients.low_latency_fraction;
  CollectiveCoefficients large = coefficients;
  large.base_seconds = coefficients.large_base_seconds;
  large.link_step_seconds = large.pcie_step_seconds = 0;
  return std::min(
      seconds_of_protocol(low_latency, kind, bytes, links, ranks),
      seconds_of_protocol(large, kind, bytes, links, ranks));
}

} // namespace anyrig::virtual_gpu
