// A segment as torch.cuda.memory_snapshot shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/memory_block.h"

namespace anyrig::virtual_gpu {

struct SegmentSnapshot {
  struct Part {
    uint64_t address, data_address;
    size_t bytes, requested_bytes;
    bool allocated;
    bool active;  // allocated, or freed and still in use by another stream
    Context context;
    int32_t line, module, backward_passes;  // where the program made it
    bool in_grad_mode, is_workspace;
  };
  uint64_t address = 0;
  StreamKey stream = 0;
  PoolId pool = kNoPool;
  Context context;
  bool small = false, expandable = false;
  size_t total_bytes = 0, allocated_bytes = 0, active_bytes = 0, requested_bytes = 0;
  std::vector<Part> parts;

  /// Returns the segment, or mapped stretch of an expandable segment, that starts with block
  /// `head`.
  static SegmentSnapshot from(const Block* head) {
    SegmentSnapshot segment;
    segment.address = head->address;
    segment.stream = head->stream;
    segment.pool = head->pool->owner;
    segment.context = head->segment_context;
    segment.small = head->pool->small;
    segment.expandable = head->expandable != nullptr;
    for (const Block* block = head; block && block->mapped; block = block->next) {
      const bool active = !block->is_free();
      segment.total_bytes += block->bytes;
      if (block->allocated) segment.allocated_bytes += block->bytes;
      if (active) segment.active_bytes += block->bytes;
      if (active) segment.requested_bytes += block->requested_bytes;
      segment.parts.push_back(
          {block->address, block->data_address.load(std::memory_order_relaxed), block->bytes,
           block->requested_bytes, block->allocated, active, block->context, block->line,
           block->module, block->backward_passes, block->in_grad_mode, block->is_workspace});
    }
    return segment;
  }
};

}  // namespace anyrig::virtual_gpu
