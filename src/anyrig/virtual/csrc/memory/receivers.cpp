#include "memory/receivers.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace anyrig::virtual_gpu {
namespace {

constexpr int64_t kEnded = -1;

// Returns when the process started, in the kernel's ticks; kEnded if it has ended, reaped or not.
int64_t start_of_process(int64_t process) {
  // The format is "pid (name) state ...", and the start is the 22nd field (proc(5)).
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return kEnded;
  }
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  ::close(file);
  text[length > 0 ? length : 0] = '\0';
  const char* field = std::strrchr(text, ')'); // the name may contain parentheses
  if (field == nullptr || field[1] == '\0' || field[2] == 'Z' || field[2] == 'X') {
    return kEnded;
  }
  constexpr int kFieldsToStart = 20;
  for (int i = 0; i < kFieldsToStart && field != nullptr; ++i) {
    field = std::strchr(field + 1, ' ');
  }
  return field == nullptr ? kEnded : std::atoll(field + 1);
}

// Guards the entries of this process. Other processes only clear entries of ended processes.
std::mutex& own_entries() {
  static auto* mutex = new std::mutex(); // memory may be freed while the process ends
  return *mutex;
}

} // namespace

bool LiveProcesses::hold(int64_t process, int64_t started) {
  const auto [found, is_new] = starts_.try_emplace(process, kEnded);
  if (is_new) {
    found->second = start_of_process(process);
  }
  return found->second == started;
}

Receivers::Entry* Receivers::find_or_claim_entry() {
  const int64_t self = getpid();
  const int64_t started = start_of_process(self);
  for (auto& entry : entries_) {
    // Not an entry of an ended process that had the same ID.
    if (entry.process == self && entry.started == started && entry.views > 0) {
      return &entry;
    }
  }
  for (auto& entry : entries_) {
    int64_t free = 0;
    if (entry.process.compare_exchange_strong(free, self)) {
      entry.started = started;
      return &entry;
    }
  }
  return nullptr;
}

Receivers::Entry* Receivers::open() {
  std::lock_guard<std::mutex> guard(own_entries());
  Entry* entry = find_or_claim_entry();
  if (entry != nullptr) {
    entry->views.fetch_add(1);
    parcels_.fetch_sub(1);
  }
  return entry;
}

void Receivers::close(Entry* entry) {
  if (entry == nullptr) {
    parcels_.fetch_sub(1);
    return;
  }
  std::lock_guard<std::mutex> guard(own_entries());
  if (entry->views.fetch_sub(1) == 1) {
    entry->process = 0;
  }
}

bool Receivers::are_gone(LiveProcesses& live) {
  // Parcels first: a receiver counts its view before it takes away the parcel.
  if (parcels_ != 0) {
    return false;
  }
  for (auto& entry : entries_) {
    if (entry.views == 0) {
      continue;
    }
    if (live.hold(entry.process, entry.started)) {
      return false;
    }
    entry.views = 0;
    entry.process = 0;
  }
  return true;
}

} // namespace anyrig::virtual_gpu
