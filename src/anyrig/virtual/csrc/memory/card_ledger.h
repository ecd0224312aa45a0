// The memory of a rig's cards as the processes of a rehearsal share it: a file that all of them map.
//
//   <folder>/cards   | slots in use | slot 0: process, bytes on card 0, 1, … | slot 1 | …
//   its locks        | who changes  | process of slot 0, while it lives      | …
//
// fcntl's record locks belong to a process: the kernel drops them however it ends, and a forked
// child has none of its parent's. So a slot whose lock nobody holds is free, and what it says of
// bytes counts no more. The last process that leaves in good order removes the folder; one of
// which all processes were killed is removed when the next rehearsal starts (rehearsal_folder.py).
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "memory/driver.h"

namespace anyrig::virtual_gpu {

/// What each process holds on each card of one machine. Safe to call from several threads.
class CardLedger {
 public:
  /// Before it joins others, a process has the cards to itself.
  CardLedger() { be_alone(); }
  CardLedger(const CardLedger&) = delete;
  CardLedger& operator=(const CardLedger&) = delete;

  /// Shares the `cards` cards of a rig with the processes that join the same folder, which is made
  /// if it is not there. Throws std::runtime_error when that cannot be done.
  void join(const std::string& folder, int cards);

  /// Takes `bytes` of the card at place `card` of the machine, which has `total_bytes`; false when
  /// they are not free. Throws std::runtime_error when another process keeps this one waiting.
  bool reserve(int card, size_t bytes, size_t total_bytes);
  /// Gives back what this process took.
  void release(int card, size_t bytes) noexcept;

  /// Held on the card by all that live.
  size_t used_bytes(int card);
  /// At least `used_bytes`, without asking who lives: what a killed process held counts until
  /// somebody has looked.
  size_t used_bytes_at_most(int card) const noexcept;
  /// Who holds memory on the card, this process always among them.
  std::vector<ProcessMemory> processes(int card);

  /// Gives everything back, as the end of the process does, and removes the folder after the last.
  void leave() noexcept;

  /// What of `leave` may be done in a signal handler.
  void abandon() noexcept;

  // Around a fork: the child joins anew, when it first asks.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  using Word = std::atomic<size_t>;
  static_assert(Word::is_always_lock_free);  // else it would not work in a file
  class Change;

  size_t table_bytes() const;
  Word* slot_of(Word* table, size_t index) const noexcept;
  void clear(Word* slot) const noexcept;
  void join_again();
  void enter();
  void claim_slot();
  void be_alone();
  void bury_the_dead();
  size_t sum(int card) const noexcept;

  mutable std::mutex mutex_;
  std::string folder_;  // empty: not shared
  std::string path_, leases_;  // in it
  int file_ = -1;
  int cards_ = 64;
  // The mapped file, or a table of this process alone; its slot. Some read them without the mutex.
  std::atomic<Word*> table_{nullptr};
  std::atomic<Word*> own_{nullptr};
};

/// The ledger of this process. It leaves when the process exits.
CardLedger& card_ledger();

/// A card of the rig that several processes share.
class SharedCard final : public Driver {
 public:
  SharedCard(CardLedger& ledger, int position, size_t total_bytes)
      : ledger_(ledger), position_(position), total_bytes_(total_bytes) {}

  bool reserve(size_t bytes) override { return ledger_.reserve(position_, bytes, total_bytes_); }
  void release(size_t bytes) override { ledger_.release(position_, bytes); }
  size_t free_bytes() const override { return total_bytes_ - ledger_.used_bytes(position_); }
  size_t total_bytes() const override { return total_bytes_; }
  std::vector<ProcessMemory> processes() const override { return ledger_.processes(position_); }

  /// At most `free_bytes`, and quick.
  size_t free_bytes_at_least() const {
    return total_bytes_ - ledger_.used_bytes_at_most(position_);
  }

 private:
  CardLedger& ledger_;
  const int position_;
  const size_t total_bytes_;
};

}  // namespace anyrig::virtual_gpu
