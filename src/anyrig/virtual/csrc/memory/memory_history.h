// The history of an allocator: each action with the stack of its request, as
// torch.cuda.memory._record_memory_history shows it. While recording is off, an action costs one
// comparison.
//
// Source: RecordContext, TraceEntry and record_trace in c10/cuda/CUDACachingAllocator.{h,cpp},
// 2.13.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/memory_block.h"

namespace anyrig::virtual_gpu {

/// In the order of c10's TraceEntry::Action.
enum class TraceAction {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory
};

struct TraceEntry {
  TraceAction action;
  uint64_t address;  // kOutOfMemory: the GPU's free bytes; kSnapshot: 0
  size_t bytes;
  StreamKey stream;
  PoolId pool;
  Context context;
  int64_t time_us;  // since 1970
  std::string metadata;
};

/// The actions for which the caller gathers a stack. Each level includes the previous ones.
enum class RecordStacks { kNever, kLive, kAllocations, kAll };

struct HistoryOptions {
  bool enabled = false;
  size_t max_entries = 1;
  RecordStacks stacks = RecordStacks::kNever;
  std::vector<TraceAction> skipped;
};

/// Not thread-safe: its allocator's lock protects it.
class MemoryHistory {
 public:
  void set_options(HistoryOptions options) {
    options_ = std::move(options);
    if (!options_.enabled) clear();
  }
  const HistoryOptions& options() const { return options_; }
  void clear() {
    entries_.clear();
    oldest_ = 0;
  }

  /// Text that is added to all later entries of this thread, on every device, as by PyTorch.
  inline static thread_local std::string metadata;

  /// The stack of the current request.
  Context current;

  /// Returns the last `max_entries` actions, oldest first.
  std::vector<TraceEntry> entries() const {
    std::vector<TraceEntry> in_order(
        entries_.begin() + static_cast<std::ptrdiff_t>(oldest_), entries_.end());
    in_order.insert(
        in_order.end(), entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    return in_order;
  }

  void add(
      TraceAction action,
      uint64_t address,
      size_t bytes,
      StreamKey stream,
      PoolId pool,
      const Context& context) {
    if (!options_.enabled) return;
    for (TraceAction skipped : options_.skipped)
      if (skipped == action) return;
    using std::chrono::system_clock, std::chrono::microseconds, std::chrono::duration_cast;
    const auto now = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
    const bool keeps_stack = options_.stacks >= RecordStacks::kAllocations;
    TraceEntry entry{action, address, bytes, stream, pool, keeps_stack ? context : nullptr,
                     now,    metadata};
    if (entries_.size() < options_.max_entries) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[oldest_] = std::move(entry);
      oldest_ = (oldest_ + 1) % options_.max_entries;
    }
  }

  /// Adds an action on a block. `own` is the stack to record if the request has none.
  void add(TraceAction action, const Block* block, size_t bytes, const Context& own) {
    if (!options_.enabled) return;
    add(action, block->address, bytes, block->stream, block->pool->owner, current ? current : own);
  }

 private:
  HistoryOptions options_;
  std::vector<TraceEntry> entries_;  // a ring buffer once it is full
  size_t oldest_ = 0;
};

/// Sets the stack of the current request for the lifetime of the object.
class RequestStackScope {
 public:
  RequestStackScope(MemoryHistory& history, Context context) : history_(history) {
    history_.current = std::move(context);
  }
  ~RequestStackScope() { history_.current = nullptr; }
  RequestStackScope(const RequestStackScope&) = delete;
  RequestStackScope& operator=(const RequestStackScope&) = delete;

 private:
  MemoryHistory& history_;
};

}  // namespace anyrig::virtual_gpu
