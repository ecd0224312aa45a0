#include "memory/reused_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// Saved contents of disjoint ranges, by first address.
using Ranges = std::map<char*, std::vector<char>>;

struct SavedRanges {
  Ranges ranges;
  std::vector<c10::DataPtr> memory; // keeps the pages mapped
};

struct SavedMemory {
  std::mutex mutex;
  std::map<CaptureId, SavedRanges> by_capture;

  static SavedMemory& get() {
    static auto* saved = new SavedMemory(); // memory is handed out while the process ends
    return *saved;
  }
};

void save(Ranges& ranges, char* begin, char* end) {
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin()) {
    const auto& [first, bytes] = *std::prev(next);
    begin = std::max(begin, first + bytes.size());
  }
  while (begin < end) {
    char* const stop = next == ranges.end() ? end : std::min(end, next->first);
    if (begin < stop) {
      ranges.emplace_hint(next, begin, std::vector<char>(begin, stop));
    }
    if (next == ranges.end()) {
      return;
    }
    begin = std::max(begin, next->first + next->second.size());
    ++next;
  }
}

} // namespace

void save_reused_memory(CaptureId capture, c10::DataPtr memory, size_t bytes) {
  auto* first = static_cast<char*>(memory.get());
  auto& saved = SavedMemory::get();
  std::lock_guard<std::mutex> guard(saved.mutex);
  SavedRanges& entry = saved.by_capture[capture];
  const size_t before = entry.ranges.size();
  save(entry.ranges, first, first + bytes);
  if (entry.ranges.size() > before) {
    entry.memory.push_back(std::move(memory));
  }
}

void restore_reused_memory(CaptureId capture) {
  auto& saved = SavedMemory::get();
  std::lock_guard<std::mutex> guard(saved.mutex);
  for (const auto& [first, bytes] : saved.by_capture[capture].ranges) {
    std::memcpy(first, bytes.data(), bytes.size());
  }
  saved.by_capture.erase(capture);
}

} // namespace anyrig::virtual_gpu
