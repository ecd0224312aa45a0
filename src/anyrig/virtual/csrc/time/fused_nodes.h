// Nodes of the autograd graph whose work another node charges.
//
// Where CUDA has one operator and this library runs several, one node charges the backward pass of
// all of them. It runs first, on the same thread:
//
//   forward    |step|step|step|   sequence numbers 7, 8, 9: a NodeSpan
//   backward   the charging node, then 9, 8, 7, which take no time
#pragma once

#include <cstdint>

namespace anyrig::virtual_gpu {

// The nodes that one thread makes between two moments.
struct NodeSpan {
  uint64_t thread = 0;
  uint64_t first = 0; // sequence numbers
  uint64_t end = 0;

  // Returns a span that begins with the next node of the calling thread.
  static NodeSpan begin();
  // Ends the span with the last node of the calling thread, which must have begun it.
  void finish();
};

// Makes the nodes of `span` take no time when the calling thread runs them in its current backward
// pass.
void fuse_nodes(const NodeSpan& span);

// Returns whether the calling thread runs such a node.
bool runs_fused_node();

} // namespace anyrig::virtual_gpu
