#include "memory/kept_host_memory.h"

#include "device/device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// Under AddressSanitizer, every piece is freed, so that the sanitizer can check it. Other C
// libraries do not report a piece's size as glibc does.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

// The sizes of small pieces are multiples of this, which is also their alignment.
constexpr size_t kUnit = 64;
// The sizes of larger pieces are multiples of this. malloc may map them, and then they have up to
// a page and an alignment more than requested.
constexpr size_t kLargeUnit = size_t{8} << 10;
constexpr size_t kMinLargeBytes = size_t{64} << 10; // below the least size that malloc maps
constexpr size_t kMaxPieceBytes = size_t{32} << 20;
constexpr size_t kMaxKeptBytes = size_t{1} << 30;

constexpr size_t kHugePage = size_t{2} << 20;
// Each piece may split a mapping in three, and Linux allows 65,530 mappings per process.
constexpr size_t kMaxHugePagePieces = 8192;

size_t unit_of(size_t bytes) {
  return bytes < kMinLargeBytes ? kUnit : kLargeUnit;
}

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Returns the size of the piece for `bytes`: whole huge pages if that adds at most an eighth.
size_t piece_size(size_t bytes) {
  const size_t in_huge_pages = round_up(bytes, kHugePage);
  const bool fits = in_huge_pages - bytes <= bytes / 8 && in_huge_pages <= kMaxPieceBytes;
  return fits ? in_huge_pages : round_up(bytes, unit_of(bytes));
}

// The classes have numbers: first those of the small sizes, then those of the large ones.
constexpr size_t kSmallClasses = kMinLargeBytes / kUnit;
constexpr size_t kClasses = kSmallClasses + kMaxPieceBytes / kLargeUnit + 1;

size_t number_of_class(size_t bytes) {
  return bytes < kMinLargeBytes ? bytes / kUnit : kSmallClasses + bytes / kLargeUnit;
}

size_t bytes_of_class(size_t number) {
  return number < kSmallClasses ? number * kUnit : (number - kSmallClasses) * kLargeUnit;
}

// Returns the class of a piece: the largest size for which it can serve.
size_t class_of(const void* piece) {
  const size_t usable = malloc_usable_size(const_cast<void*>(piece));
  // malloc aligns a mapped piece to huge pages by adding up to one of them.
  const bool is_in_huge_pages =
      usable >= kHugePage && reinterpret_cast<uintptr_t>(piece) % kHugePage == 0;
  const size_t unit = is_in_huge_pages ? kHugePage : unit_of(usable);
  return usable / unit * unit;
}

class KeptHostMemory {
 public:
  static KeptHostMemory& get() {
    static auto* kept = new KeptHostMemory(); // memory may be freed while the process ends
    return *kept;
  }

  // Returns a kept piece of the class `bytes`, or null.
  void* take(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& [pieces, last_request] = classes_[number_of_class(bytes)];
    last_request = ++requests_;
    if (pieces.empty()) {
      return nullptr;
    }
    void* piece = pieces.back();
    pieces.pop_back();
    kept_bytes_ -= bytes;
    return piece;
  }

  // Keeps a piece of the class `bytes`; if there are too many, frees those of the classes that were
  // not requested for longest.
  void keep(void* piece, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    while (kept_bytes_ + bytes > kMaxKeptBytes) {
      drop_stalest();
    }
    classes_[number_of_class(bytes)].pieces.push_back(piece);
    kept_bytes_ += bytes;
  }

  // Requests huge pages for a new piece. A backward pass runs in its device thread, on any core,
  // and each core has its own TLB, where one 2 MiB entry replaces 512.
  void request_huge_pages(void* piece, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (in_huge_pages_ < kMaxHugePagePieces) {
      ++in_huge_pages_;
      madvise(piece, bytes, MADV_HUGEPAGE); // has no effect on a system without them
    }
  }

  void drop() {
    std::lock_guard<std::mutex> guard(mutex_);
    for (size_t number = 0; number < kClasses; ++number) {
      free_all(number);
    }
  }

 private:
  struct Class {
    std::vector<void*> pieces;
    uint64_t last_request = 0;
  };

  void free_all(size_t number) {
    const std::vector<void*> pieces = std::exchange(classes_[number].pieces, {});
    const size_t bytes = bytes_of_class(number);
    for (void* piece : pieces) {
      c10::free_cpu(piece);
    }
    kept_bytes_ -= bytes * pieces.size();
    if (bytes % kHugePage == 0) {
      in_huge_pages_ -= std::min(in_huge_pages_, pieces.size());
    }
  }

  void drop_stalest() {
    const auto is_staler = [](const Class& a, const Class& b) {
      return !a.pieces.empty() && (b.pieces.empty() || a.last_request < b.last_request);
    };
    const auto stalest = std::min_element(classes_.begin(), classes_.end(), is_staler);
    free_all(static_cast<size_t>(stalest - classes_.begin()));
  }

  std::mutex mutex_;
  std::array<Class, kClasses> classes_;
  size_t kept_bytes_ = 0;
  uint64_t requests_ = 0;
  size_t in_huge_pages_ = 0; // counts those that oneDNN freed, too
};

// Allocates a piece that free() can release, as oneDNN does.
void* make_piece(size_t bytes) {
  void* piece = nullptr;
  if (bytes % kHugePage != 0 || posix_memalign(&piece, kHugePage, bytes) != 0) {
    return c10::alloc_cpu(bytes);
  }
  KeptHostMemory::get().request_huge_pages(piece, bytes);
  return piece;
}

void release_host_piece(void* piece) {
  const size_t bytes = class_of(piece);
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
