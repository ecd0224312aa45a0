#include "memory/stacks.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>

namespace anyrig::virtual_gpu {
namespace {

std::atomic<RecordStacks> recorded{RecordStacks::kNever};
std::atomic<bool> records_history{false};
std::atomic<bool> with_cpp_frames{false};

} // namespace

void record_stacks(RecordStacks stacks, bool cpp_frames, bool history) {
  with_cpp_frames = cpp_frames;
  recorded = stacks;
  records_history = history;
}

bool history_enabled() {
  return records_history.load(std::memory_order_relaxed);
}

Context stack_for(RecordStacks level) {
  if (C10_LIKELY(recorded.load(std::memory_order_relaxed) < level)) {
    return nullptr;
  }
  return torch::CapturedTraceback::gather(
      /*python=*/true, /*script=*/true, with_cpp_frames.load(std::memory_order_relaxed));
}

} // namespace anyrig::virtual_gpu
