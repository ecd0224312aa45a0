// The paths between devices, and how fast they are.
//
//   node 0                                    node 1
//   cuda:0 ══ NVLink ══ cuda:1                ┌────────┐
//     ║ PCIe              ║ PCIe              │        │
//     ╚═════ host ════════╝ ────── network ── │        │
//
// NVLink joins all cards of one kind in a node at full rate, as a switch does; other pairs go through
// the host by the PCIe lanes of both. Every card has its own lanes to the host. Between nodes, every
// card has its own part of the network.
#pragma once

#include "device/device.h"

#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

// The slower kinds last.
enum class LinkKind { Memory, Nvlink, Pcie, Network };
inline constexpr size_t kLinkKinds = 4;

struct Link {
  LinkKind kind;
  double bytes_per_second; // in one direction; 0: unknown, and then it takes no time
};

Link link_between(const DeviceFacts& one, const DeviceFacts& other);

// The links that a ring over devices crosses.
struct RingLinks {
  int nodes;
  Link inside;  // the slowest inside a node
  Link across;  // what one device has of the network
  int fewest_on_a_node;

  // The slowest part of the ring. Each device of a node carries a part of what crosses to another.
  double bytes_per_second() const;
};

// `members` are positions in the whole rig.
RingLinks ring_links(c10::ArrayRef<int> members);

} // namespace anyrig::virtual_gpu
