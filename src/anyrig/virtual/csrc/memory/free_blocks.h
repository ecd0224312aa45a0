// The free blocks of a pool, in the order of the best fit.
//
//   runs   | 512 at a | 512 at b | 2048 at c | ... |   | ... |   | ... |
//
// Every request searches them, and most change them twice. So what is compared lies next to each
// other in memory, apart from the blocks, and a change moves the rest of one run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {

struct Block;
using StreamKey = int64_t;

/// Best fit: the smallest block first. Among equal sizes, PyTorch 2.13 prefers the block of the
/// oldest segment, then the lowest address. Here addresses rise in the order of allocation, so one
/// comparison by address gives both this rule and the older one (address alone).
class FreeBlocks {
 public:
  struct Entry {
    StreamKey stream;
    size_t bytes;
    uint64_t address;
    Block* block;

    bool operator<(const Entry& other) const {
      if (stream != other.stream) return stream < other.stream;
      if (bytes != other.bytes) return bytes < other.bytes;
      return address < other.address;
    }
  };

  /// Invalid after a change.
  class iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    reference operator*() const { return (*runs_)[run_][place_]; }
    pointer operator->() const { return &**this; }
    iterator& operator++() {
      if (++place_ == (*runs_)[run_].size()) {
        ++run_;
        place_ = 0;
      }
      return *this;
    }
    iterator& operator--() {
      if (place_ == 0) place_ = (*runs_)[--run_].size();
      --place_;
      return *this;
    }
    bool operator==(const iterator& other) const {
      return run_ == other.run_ && place_ == other.place_;
    }
    bool operator!=(const iterator& other) const { return !(*this == other); }

   private:
    friend class FreeBlocks;
    using Runs = std::vector<std::vector<Entry>>;
    iterator(const Runs& runs, size_t run, size_t place) : runs_(&runs), run_(run), place_(place) {}

    const Runs* runs_;
    size_t run_;
    size_t place_;  // in the run; 0 behind the last run
  };

  iterator begin() const { return {runs_, 0, 0}; }
  iterator end() const { return {runs_, runs_.size(), 0}; }

  /// Returns the blocks, for loops that change their set.
  std::vector<Block*> blocks() const {
    std::vector<Block*> blocks;
    for (const Entry& entry : *this) blocks.push_back(entry.block);
    return blocks;
  }

  /// Finds the first block of `stream` that has `bytes` or more; otherwise the first one of the
  /// next stream, or end().
  iterator find_size(StreamKey stream, size_t bytes) const {
    return find({stream, bytes, 0, nullptr});
  }

  void insert(const Entry& entry) {
    if (runs_.empty()) {
      runs_.push_back({entry});
      return;
    }
    iterator it = find(entry);
    if (it == end()) it = {runs_, runs_.size() - 1, runs_.back().size()};
    auto& run = runs_[it.run_];
    run.insert(run.begin() + static_cast<std::ptrdiff_t>(it.place_), entry);
    if (run.size() > kMostInRun) {
      const auto middle = run.begin() + kMostInRun / 2;
      std::vector<Entry> second(middle, run.end());
      run.erase(middle, run.end());
      runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(it.run_) + 1, std::move(second));
    }
  }

  /// Removes an entry that is among them.
  void erase(const Entry& entry) {
    const iterator it = find(entry);
    auto& run = runs_[it.run_];
    run.erase(run.begin() + static_cast<std::ptrdiff_t>(it.place_));
    if (run.empty()) runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(it.run_));
  }

 private:
  static constexpr size_t kMostInRun = 256;  // 8 KiB

  /// Finds the first entry that does not come before `entry`.
  iterator find(const Entry& entry) const {
    const auto run = std::lower_bound(
        runs_.begin(), runs_.end(), entry,
        [](const auto& run, const Entry& entry) { return run.back() < entry; });
    if (run == runs_.end()) return end();
    const auto place = std::lower_bound(run->begin(), run->end(), entry);
    return {
        runs_, static_cast<size_t>(run - runs_.begin()), static_cast<size_t>(place - run->begin())};
  }

  std::vector<std::vector<Entry>> runs_;  // none is empty
};

}  // namespace anyrig::virtual_gpu
