// Links between devices, and the ring of a collective over them. This file does not depend on
// PyTorch, so that a script can fit the formulas.
#pragma once

#include <algorithm>
#include <cstddef>

namespace anyrig::virtual_gpu {

// In order from fast to slow.
enum class LinkKind { Memory, Nvlink, Pcie, Network };
inline constexpr size_t kLinkKinds = 4;

struct Link {
  LinkKind kind;
  double bytes_per_second; // that a copy reaches, in one direction; 0: unknown, takes no time
};

// Returns the lower of two rates. A rate of zero is unknown and is ignored.
inline double slower(double one, double other) {
  return one > 0 && other > 0 ? std::min(one, other) : std::max(one, other);
}

// The links of a ring over a set of devices.
struct RingLinks {
  int nodes;
  Link inside;  // the slowest link inside a node
  Link across;  // one device's share of the network
  int min_devices_per_node;

  // Returns the bandwidth of the slowest part of the ring. Between nodes, each device of a node
  // carries a share of the data.
  double bytes_per_second() const {
    return nodes == 1
        ? inside.bytes_per_second
        : slower(inside.bytes_per_second, across.bytes_per_second * min_devices_per_node);
  }
};

} // namespace anyrig::virtual_gpu
