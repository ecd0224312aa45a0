#include "time/links.h"

#include "time/cost/copy_cost.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

// Returns the slower of two links. A link of a slower kind is slower whatever the rates.
Link slower_link(const Link& one, const Link& other) {
  if (one.kind != other.kind) {
    return one.kind > other.kind ? one : other;
  }
  return {one.kind, slower(one.bytes_per_second, other.bytes_per_second)};
}

bool are_linked(const DeviceFacts& one, const DeviceFacts& other) {
  return !one.gpu.fabric.empty() && one.gpu.fabric == other.gpu.fabric;
}

} // namespace

Link link_between(const DeviceFacts& one, const DeviceFacts& other) {
  const auto slower_of = [&](LinkKind kind) {
    return Link{kind, slower(copy_rate(one.gpu, kind), copy_rate(other.gpu, kind))};
  };
  if (one.position == other.position) {
    return slower_of(LinkKind::Memory);
  }
  if (one.node != other.node) {
    return slower_of(LinkKind::Network);
  }
  return slower_of(are_linked(one, other) ? LinkKind::Nvlink : LinkKind::Pcie);
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
  RingLinks links{
      static_cast<int>(positions_of_node.size()),
      {LinkKind::Memory, 0},
      {LinkKind::Network, 0},
      std::numeric_limits<int>::max()};
  for (const auto& [node, positions] : positions_of_node) {
    const DeviceFacts& first = rig[*positions.begin()];
    links.min_devices_per_node =
        std::min(links.min_devices_per_node, static_cast<int>(positions.size()));
    links.inside = slower_link(links.inside, link_between(first, first));
    for (const int position : positions) {
      const DeviceFacts& device = rig[position];
      links.across.bytes_per_second =
          slower(links.across.bytes_per_second, copy_rate(device.gpu, LinkKind::Network));
      if (position != first.position) {
        links.inside = slower_link(links.inside, link_between(first, device));
      }
    }
  }
  return links;
}

} // namespace anyrig::virtual_gpu
