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

// Under AddressSanitizer, every piece is freed, so that the sanitizer can check it. Other C
// libraries do not report a piece's size as glibc does.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

// The sizes of pieces are multiples of this, which is also their alignment.
constexpr size_t kUnit = 64;
constexpr size_t kMaxPieceBytes = size_t{32} << 20; // glibc maps larger pieces
constexpr size_t kMaxKeptBytes = size_t{256} << 20;

constexpr size_t kHugePage = size_t{2} << 20;
// To align a piece, glibc allocates one more huge page, from its heap if the sum is below
// kMaxPieceBytes.
constexpr size_t kMaxHugePageBytes = kMaxPieceBytes - 2 * kHugePage;
// Each piece may split a mapping in three, and Linux allows 65,530 mappings per process.
constexpr size_t kMaxHugePagePieces = 8192;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Returns the size of the piece for `bytes`: whole huge pages if that adds at most an eighth.
size_t piece_size(size_t bytes) {
  const size_t in_huge_pages = round_up(bytes, kHugePage);
  const bool fits = in_huge_pages - bytes <= bytes / 8 && in_huge_pages <= kMaxHugePageBytes;
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
    if (kept_bytes_ + bytes > kMaxKeptBytes) {
      drop_all();
    }
    pieces_[bytes].push_back(piece);
    kept_bytes_ += bytes;
  }

  // Requests huge pages. A backward pass runs in its device thread, on any core, and each core has
  // its own TLB, where one 2 MiB entry replaces 512.
  void request_huge_pages(void* piece, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = in_huge_pages_.find(piece);
    if (found != in_huge_pages_.end() ? found->second < bytes
                                      : in_huge_pages_.size() < kMaxHugePagePieces) {
      madvise(piece, bytes, MADV_HUGEPAGE); // has no effect on a system without them
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
  std::unordered_map<size_t, std::vector<void*>> pieces_; // by size
  size_t kept_bytes_ = 0;
  std::unordered_map<void*, size_t> in_huge_pages_; // bytes in huge pages, by address
};

// Allocates a piece that free() can release, as oneDNN does.
void* make_piece(size_t bytes) {
  void* piece = nullptr;
  if (bytes % kHugePage != 0 || bytes > kMaxHugePageBytes ||
      posix_memalign(&piece, kHugePage, bytes) != 0) {
    return c10::alloc_cpu(bytes);
  }
  KeptHostMemory::get().request_huge_pages(piece, bytes);
  return piece;
}

void release_host_piece(void* piece) {
  // glibc rounds pieces from its heap up by less than a unit.
  const size_t bytes = malloc_usable_size(piece) / kUnit * kUnit;
  if (bytes > kMaxPieceBytes || forked_after_use()) { // a forked child may inherit a held lock
    c10::free_cpu(piece);
  } else {
    KeptHostMemory::get().keep(piece, bytes);
  }
}

#endif

} // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

c10::DataPtr take_host_memory(size_t bytes) {
  const size_t piece_bytes = piece_size(bytes);
  // Not from PyTorch's allocator, which would report to the profiler memory that no program
  // requested.
  const bool is_cacheable = piece_bytes > 0 && piece_bytes <= kMaxPieceBytes;
  void* piece = is_cacheable ? KeptHostMemory::get().take(piece_bytes) : nullptr;
  if (piece == nullptr) {
    piece = is_cacheable ? make_piece(piece_bytes) : c10::alloc_cpu(bytes);
  }
  return {piece, piece, &release_host_piece, c10::Device(c10::DeviceType::CPU)};
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
