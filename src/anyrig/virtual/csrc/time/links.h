// The links between devices, and their bandwidths.
//
//   node 0                                    node 1
//   cuda:0 ══ NVLink ══ cuda:1                ┌────────┐
//     ║ PCIe              ║ PCIe              │        │
//     ╚═════ host ════════╝ ────── network ── │        │
//
// NVLink connects all GPUs of one kind in a node at full rate, as through a switch. Other pairs
// communicate through the host over the PCIe lanes of both. Every GPU has its own lanes to the host
// and its own share of the network between nodes.
#pragma once

#include "device/device.h"

#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

// In order from fast to slow.
enum class LinkKind { Memory, Nvlink, Pcie, Network };
inline constexpr size_t kLinkKinds = 4;

struct Link {
  LinkKind kind;
  double bytes_per_second; // in one direction; 0: unknown, treated as taking no time
};

Link link_between(const DeviceFacts& one, const DeviceFacts& other);

// The links of a ring over a set of devices.
struct RingLinks {
  int nodes;
  Link inside;  // the slowest link inside a node
  Link across;  // one device's share of the network
  int min_devices_per_node;

  // Returns the bandwidth of the slowest part of the ring. Between nodes, each device of a node
  // carries a share of the data.
  double bytes_per_second() const;
};

// Returns the links of a ring over devices, given by their positions in the whole rig.
RingLinks ring_links(c10::ArrayRef<int> members);

} // namespace anyrig::virtual_gpu
