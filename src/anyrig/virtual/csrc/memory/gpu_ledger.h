// The memory use of a rig's GPUs, which the processes of a rehearsal share through a mapped file.
//
//   <folder>/gpus   | slots in use | slot 0: process, bytes on GPU 0, 1, … | slot 1 | …
//   its locks        | table lock   | process of slot 0, while it lives     | …
//
// fcntl's record locks belong to a process: the kernel drops them however the process ends, and a
// forked child inherits none. A slot whose lock is not held is therefore free, and its bytes no
// longer count. The last process that exits normally removes the folder. If all processes were
// killed, the next rehearsal removes it at its start (rehearsal_folder.py).
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "memory/driver.h"

namespace anyrig::virtual_gpu {

/// The memory that each process holds on each GPU of one node. Safe to call from several threads.
class GpuLedger {
 public:
  /// Starts with a private table: no GPU is shared until `join`.
  GpuLedger() { use_private_table(); }
  GpuLedger(const GpuLedger&) = delete;
  GpuLedger& operator=(const GpuLedger&) = delete;

  /// Shares the `gpus` GPUs of a rig with all processes that join the same folder, and creates the
  /// folder if it is missing. Throws std::runtime_error on failure.
  void join(const std::string& folder, int gpus);

  /// Reserves `bytes` on GPU number `gpu` of the node, which has `total_bytes`. Returns false when
  /// they are not free. Throws std::runtime_error when another process holds the lock for too long.
  bool reserve(int gpu, size_t bytes, size_t total_bytes);
  /// Releases bytes that this process reserved.
  void release(int gpu, size_t bytes) noexcept;

  /// Returns the bytes that all live processes hold on the GPU.
  size_t used_bytes(int gpu);
  /// Returns an upper bound of `used_bytes` without checking which processes live: the bytes of a
  /// killed process count until another call has cleared its slot.
  size_t used_bytes_upper_bound(int gpu) const noexcept;
  /// Returns the processes that hold memory on the GPU. Always includes this process.
  std::vector<ProcessMemory> processes(int gpu);

  /// Releases everything, as the end of the process does. The last process removes the folder.
  void leave() noexcept;

  /// The part of `leave` that is safe in a signal handler.
  void abandon() noexcept;

  // Called around a fork. The child joins again at its first request.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  using Word = std::atomic<size_t>;
  static_assert(Word::is_always_lock_free);  // required in a shared file
  class TableLock;

  size_t table_bytes() const;
  Word* slot_of(Word* table, size_t index) const noexcept;
  void clear(Word* slot) const noexcept;
  void rejoin();
  void open_table();
  void claim_slot();
  void use_private_table();
  void clear_dead_slots();
  size_t sum_bytes(int gpu) const noexcept;

  mutable std::mutex mutex_;
  std::string folder_;  // empty: not shared
  std::string path_, leases_;  // in folder_
  int file_ = -1;
  int gpus_ = 64;
  // The mapped file or a private table, and this process's slot there. Some methods read them
  // without the mutex.
  std::atomic<Word*> table_{nullptr};
  std::atomic<Word*> own_slot_{nullptr};
};

/// Returns the ledger of this process, which leaves when the process exits.
GpuLedger& gpu_ledger();

/// A GPU that several processes share.
class SharedGpu final : public Driver {
 public:
  SharedGpu(GpuLedger& ledger, int position, size_t total_bytes)
      : ledger_(ledger), position_(position), total_bytes_(total_bytes) {}

  bool reserve(size_t bytes) override { return ledger_.reserve(position_, bytes, total_bytes_); }
  void release(size_t bytes) override { ledger_.release(position_, bytes); }
  size_t free_bytes() const override { return total_bytes_ - ledger_.used_bytes(position_); }
  size_t total_bytes() const override { return total_bytes_; }
  std::vector<ProcessMemory> processes() const override { return ledger_.processes(position_); }

  /// Returns a lower bound of `free_bytes`, without locking.
  size_t free_bytes_lower_bound() const {
    return total_bytes_ - ledger_.used_bytes_upper_bound(position_);
  }

 private:
  GpuLedger& ledger_;
  const int position_;
  const size_t total_bytes_;
};

}  // namespace anyrig::virtual_gpu
