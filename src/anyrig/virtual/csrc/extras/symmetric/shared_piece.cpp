#include "extras/symmetric/shared_piece.h"

#include "device/device.h"
#include "memory/shared_file.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr size_t kPageBytes = 4096;
// CU_MEM_ALLOC_GRANULARITY_RECOMMENDED on all NVIDIA GPUs.
constexpr size_t kGpuGranularity = size_t{2} << 20;

size_t rounded_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The bytes before the buffer: the signal pad and the times of its words.
size_t header_bytes(const PieceSizes& sizes) {
  const size_t times = sizes.signal_bytes / sizeof(uint32_t) * sizeof(double);
  return rounded_up(rounded_up(sizes.signal_bytes, sizeof(double)) + times, kPageBytes);
}

size_t file_bytes(const PieceSizes& sizes) {
  // An empty buffer needs an address of its own, too.
  return header_bytes(sizes) + (shape_only() ? 0 : std::max<size_t>(sizes.buffer_bytes, 1));
}

// The bytes of GPU memory that CUDASymmetricMemoryAllocator::alloc allocates.
size_t gpu_bytes(const PieceSizes& sizes) {
  return rounded_up(rounded_up(sizes.buffer_bytes, 16) + sizes.signal_bytes, kGpuGranularity);
}

bool range_contains(const void* first, size_t bytes, const void* address) {
  const auto* place = static_cast<const char*>(address);
  const auto* begin = static_cast<const char*>(first);
  return place >= begin && place < begin + std::max<size_t>(bytes, 1);
}

struct Pieces {
  std::mutex mutex;
  std::vector<const SharedPiece*> all;

  static Pieces& get() {
    static auto* pieces = new Pieces(); // pieces may be freed while the process exits
    return *pieces;
  }
};

} // namespace

SharedPiece::SharedPiece(PieceSizes sizes, c10::DeviceIndex device)
    : sizes_(sizes), device_(device), gpu_memory_(std::in_place, device, gpu_bytes(sizes)) {
  file_ = make_shared_file(file_bytes(sizes));
  mapped_ = map_shared_file(file_, file_bytes(sizes));
  set_buffer_and_register();
}

SharedPiece::SharedPiece(PieceSizes sizes, c10::DeviceIndex device, int64_t process, int file)
    : sizes_(sizes), device_(device), mapped_(map_file_of(process, file, file_bytes(sizes))) {
  set_buffer_and_register();
}

void SharedPiece::set_buffer_and_register() {
  buffer_ = shape_only() ? reserve_addresses(sizes_.buffer_bytes)
                         : static_cast<char*>(mapped_) + header_bytes(sizes_);
  auto& pieces = Pieces::get();
  std::lock_guard<std::mutex> guard(pieces.mutex);
  pieces.all.push_back(this);
}

SharedPiece::~SharedPiece() {
  if (forked_after_use()) {
    return; // a forked child may inherit a held lock
  }
  {
    auto& pieces = Pieces::get();
    std::lock_guard<std::mutex> guard(pieces.mutex);
    pieces.all.erase(std::find(pieces.all.begin(), pieces.all.end(), this));
  }
  if (shape_only()) {
    free_addresses(buffer_, sizes_.buffer_bytes);
  }
  munmap(mapped_, file_bytes(sizes_));
  if (file_ >= 0) {
    close(file_);
  }
}

double* SharedPiece::sent_time(size_t word) const {
  auto* times = static_cast<char*>(mapped_) + rounded_up(sizes_.signal_bytes, sizeof(double));
  return reinterpret_cast<double*>(times) + word;
}

bool SharedPiece::contains(const void* address) const {
  return range_contains(buffer_, sizes_.buffer_bytes, address) || signal_pad_contains(address);
}

bool SharedPiece::signal_pad_contains(const void* address) const {
  return range_contains(mapped_, sizes_.signal_bytes, address);
}

void* reserve_addresses(size_t bytes) {
  void* first = mmap(
      nullptr, std::max<size_t>(bytes, 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1, 0);
  TORCH_CHECK(first != MAP_FAILED, "the host has no ", bytes, " bytes of address space left");
  return first;
}

void free_addresses(void* first, size_t bytes) {
  munmap(first, std::max<size_t>(bytes, 1));
}

std::shared_ptr<const SharedPiece> piece_of(const void* address) {
  auto& pieces = Pieces::get();
  std::lock_guard<std::mutex> guard(pieces.mutex);
  const auto found = std::find_if(
      pieces.all.begin(), pieces.all.end(),
      [address](const SharedPiece* piece) { return piece->contains(address); });
  return found == pieces.all.end() ? nullptr : (*found)->weak_from_this().lock();
}

std::optional<c10::DeviceIndex> device_of_piece(const void* address) {
  const auto piece = piece_of(address);
  return piece == nullptr ? std::nullopt : std::optional(piece->device());
}

} // namespace anyrig::virtual_gpu
