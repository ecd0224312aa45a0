#include "memory/kept_host_memory.h"

#include "device/device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// The sanitizer is to see each piece freed; other C libraries do not tell a size as glibc does.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

// Pieces are of a multiple of this, their alignment.
constexpr size_t kUnit = 64;
constexpr size_t kLargestPiece = size_t{32} << 20; // larger ones glibc takes from the system
constexpr size_t kMostKept = size_t{256} << 20;

constexpr size_t kHugePage = size_t{2} << 20;
// To align a piece, glibc takes a huge page more, from its heap where that is below this.
constexpr size_t kLargestInHugePages = kLargestPiece - 2 * kHugePage;
// Each may split a mapping in three, and Linux gives a process 65,530 of them.
constexpr size_t kMostInHugePages = 8192;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The size of the piece that holds `bytes`: whole huge pages where that adds an eighth at most.
size_t piece_size(size_t bytes) {
  const size_t in_huge_pages = round_up(bytes, kHugePage);
  const bool fits = in_huge_pages - bytes <= bytes / 8 && in_huge_pages <= kLargestInHugePages;
  return fits ? in_huge_pages : round_up(bytes, kUnit);
}

class KeptHostMemory {
 public:
  static KeptHostMemory& get() {
    static auto* kept = new KeptHostMemory(); // memory may be freed while the process ends
    return *kept;
  }

  void* take(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = pieces_.find(bytes);
    if (found == pieces_.end() || found->second.empty()) {
      return nullptr;
    }
    void* piece = found->second.back();
    found->second.pop_back();
    kept_bytes_ -= bytes;
    return piece;
  }

  void keep(void* piece, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (kept_bytes_ + bytes > kMostKept) {
      drop_all();
    }
    pieces_[bytes].push_back(piece);
    kept_bytes_ += bytes;
  }

  // Asks the system for huge pages: a backward runs in its device's thread, on whichever core, and
  // each core looks up the addresses of pages by itself, of 2 MiB one in the place of 512.
  void ask_for_huge_pages(void* piece, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = in_huge_pages_.find(piece);
    if (found != in_huge_pages_.end() ? found->second < bytes
                                      : in_huge_pages_.size() < kMostInHugePages) {
      madvise(piece, bytes, MADV_HUGEPAGE); // a system without them says no, and all is as before
      in_huge_pages_[piece] = bytes;
    }
  }

  void drop() {
    std::lock_guard<std::mutex> guard(mutex_);
    drop_all();
  }

 private:
  void drop_all() {
    for (const auto& [bytes, pieces] : pieces_) {
      for (void* piece : pieces) {
        c10::free_cpu(piece);
      }
    }
    pieces_.clear();
    kept_bytes_ = 0;
  }

  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> pieces_; // by their size
  size_t kept_bytes_ = 0;
  std::unordered_map<void*, size_t> in_huge_pages_; // by address: how much of it
};

// A piece of the C library's: oneDNN gives it back there directly.
void* make_piece(size_t bytes) {
  void* piece = nullptr;
  if (bytes % kHugePage != 0 || bytes > kLargestInHugePages ||
      posix_memalign(&piece, kHugePage, bytes) != 0) {
    return c10::alloc_cpu(bytes);
  }
  KeptHostMemory::get().ask_for_huge_pages(piece, bytes);
  return piece;
}

void give_back(void* piece) {
  // What glibc adds to a piece from its heap is less than a unit.
  const size_t bytes = malloc_usable_size(piece) / kUnit * kUnit;
  if (bytes > kLargestPiece || forked_after_use()) { // a child finds locks as they were
    c10::free_cpu(piece);
  } else {
    KeptHostMemory::get().keep(piece, bytes);
  }
}

#endif

} // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

c10::DataPtr take_host_memory(size_t bytes) {
  const size_t whole = piece_size(bytes);
  // Never from PyTorch's allocator: it would tell the profiler of memory that no program asked for.
  const bool is_kept = whole > 0 && whole <= kLargestPiece;
  void* piece = is_kept ? KeptHostMemory::get().take(whole) : nullptr;
  if (piece == nullptr) {
    piece = is_kept ? make_piece(whole) : c10::alloc_cpu(bytes);
  }
  return {piece, piece, &give_back, c10::Device(c10::DeviceType::CPU)};
}

void drop_kept_host_memory() {
  KeptHostMemory::get().drop();
}

#else

c10::DataPtr take_host_memory(size_t bytes) {
  return c10::GetDefaultCPUAllocator()->allocate(bytes);
}

void drop_kept_host_memory() {}

#endif

} // namespace anyrig::virtual_gpu
