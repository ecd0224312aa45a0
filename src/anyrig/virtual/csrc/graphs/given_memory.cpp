#include "graphs/given_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// What lay in ranges that do not overlap, by their first address.
using Ranges = std::map<char*, std::vector<char>>;

struct KeptMemory {
  Ranges ranges;
  std::vector<c10::DataPtr> memory; // keeps the host's pages
};

struct Given {
  std::mutex mutex;
  std::map<CaptureId, KeptMemory> of_capture;

  static Given& get() {
    static auto* given = new Given(); // memory is handed out while the process ends
    return *given;
  }
};

void keep(Ranges& ranges, char* begin, char* end) {
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

void keep_given(CaptureId capture, c10::DataPtr memory, size_t bytes) {
  auto* first = static_cast<char*>(memory.get());
  auto& given = Given::get();
  std::lock_guard<std::mutex> guard(given.mutex);
  KeptMemory& kept = given.of_capture[capture];
  const size_t before = kept.ranges.size();
  keep(kept.ranges, first, first + bytes);
  if (kept.ranges.size() > before) {
    kept.memory.push_back(std::move(memory));
  }
}

void put_back_given(CaptureId capture) {
  auto& given = Given::get();
  std::lock_guard<std::mutex> guard(given.mutex);
  for (const auto& [first, bytes] : given.of_capture[capture].ranges) {
    std::memcpy(first, bytes.data(), bytes.size());
  }
  given.of_capture.erase(capture);
}

} // namespace anyrig::virtual_gpu
