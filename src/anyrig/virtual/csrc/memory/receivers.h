// Who uses a piece of sent memory, in the first page of its file (shared_memory.h).
//
//   | parcels | process, start, views | process, start, views | …
//
//   send       one parcel more
//   open       one view more in the receiver's entry, then one parcel less
//   close      one view less
//
// A process that is killed never closes its views. So an entry names its process, and the sender
// ignores the entries of processes that have ended. The start time distinguishes a process from a
// later one with the same ID. A parcel that no process has opened stays, because the process that
// would have opened it is unknown.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

namespace anyrig::virtual_gpu {

// Finds out once which processes live.
class LiveProcesses {
 public:
  // Returns whether the process lives that had this ID and start time.
  bool hold(int64_t process, int64_t started);

 private:
  std::map<int64_t, int64_t> starts_;
};

// All members are zero in a new file.
class Receivers {
 public:
  static constexpr size_t kBytes = 4096;

  struct Entry {
    std::atomic<int64_t> process; // 0: free
    std::atomic<int64_t> started;
    std::atomic<int64_t> views;
  };

  void add_parcel() { parcels_.fetch_add(1); }
  // Turns a parcel into a view of this process. Returns null if all entries are taken; the parcel
  // then stands for the view.
  Entry* open();
  // Ends a view that `open` returned.
  void close(Entry* entry);
  // Returns whether there is neither a parcel nor a view of a live process. Frees the entries of
  // processes that have ended.
  bool are_gone(LiveProcesses& live);

 private:
  static_assert(std::atomic<int64_t>::is_always_lock_free); // required in a shared file
  static constexpr size_t kEntries = (kBytes - sizeof(int64_t)) / sizeof(Entry);

  Entry* find_or_claim_entry();

  std::atomic<int64_t> parcels_;
  std::array<Entry, kEntries> entries_;
};
static_assert(sizeof(Receivers) <= Receivers::kBytes);

} // namespace anyrig::virtual_gpu
