#include "time/links.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

// Returns the lower of two rates. A rate of zero is unknown and is ignored.
double slower(double one, double other) {
  return one > 0 && other > 0 ? std::min(one, other) : std::max(one, other);
}

// Returns the slower of two links. A link of a slower kind is slower whatever the rates.
Link slower(const Link& one, const Link& other) {
  if (one.kind != other.kind) {
    return one.kind > other.kind ? one : other;
  }
  return {one.kind, slower(one.bytes_per_second, other.bytes_per_second)};
}

bool are_linked(const DeviceFacts& one, const DeviceFacts& other) {
  return !one.rates.fabric.empty() && one.rates.fabric == other.rates.fabric;
}

} // namespace

Link link_between(const DeviceFacts& one, const DeviceFacts& other) {
  const Rates &a = one.rates, &b = other.rates;
  if (one.position == other.position) {
    return {LinkKind::Memory, a.memory_bytes_per_second / 2}; // each byte is read and written
  }
  if (one.node != other.node) {
    return {LinkKind::Network, slower(a.network_bytes_per_second, b.network_bytes_per_second)};
  }
  if (are_linked(one, other)) {
    return {LinkKind::Nvlink, slower(a.link_bytes_per_second, b.link_bytes_per_second)};
  }
  return {LinkKind::Pcie, slower(a.pcie_bytes_per_second, b.pcie_bytes_per_second)};
}

double RingLinks::bytes_per_second() const {
  return nodes == 1
      ? inside.bytes_per_second
      : slower(inside.bytes_per_second, across.bytes_per_second * min_devices_per_node);
}

RingLinks ring_links(c10::ArrayRef<int> members) {
  const auto& rig = whole_rig();
  std::map<int, std::set<int>> positions_of_node;
  for (const int position : members) {
    TORCH_CHECK(
        position >= 0 && position < static_cast<int>(rig.size()),
        "no device of the virtual rig has position ", position, "; it has ", rig.size());
    positions_of_node[rig[position].node].insert(position);
  }
  RingLinks links{static_cast<int>(positions_of_node.size()), {LinkKind::Memory, 0},
                  {LinkKind::Network, 0}, std::numeric_limits<int>::max()};
  for (const auto& [node, positions] : positions_of_node) {
    const DeviceFacts& first = rig[*positions.begin()];
    links.min_devices_per_node =
        std::min(links.min_devices_per_node, static_cast<int>(positions.size()));
    links.inside = slower(links.inside, link_between(first, first));
    for (const int position : positions) {
      const DeviceFacts& device = rig[position];
      links.across.bytes_per_second =
          slower(links.across.bytes_per_second, device.rates.network_bytes_per_second);
      if (position != first.position) {
        links.inside = slower(links.inside, link_between(first, device));
      }
    }
  }
  return links;
}

} // namespace anyrig::virtual_gpu
