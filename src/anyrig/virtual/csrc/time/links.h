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
#include "time/ring.h"

#include <c10/util/ArrayRef.h>

namespace anyrig::virtual_gpu {

Link link_between(const DeviceFacts& one, const DeviceFacts& other);

// Returns the links of a ring over devices, given by their positions in the whole rig.
RingLinks ring_links(c10::ArrayRef<int> members);

} // namespace anyrig::virtual_gpu
