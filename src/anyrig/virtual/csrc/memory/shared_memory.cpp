#include "memory/shared_memory.h"

#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "memory/shared_file.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// Precedes the bytes, which start on a page of their own.
struct Header {
  std::atomic<int64_t> receivers;
};
static_assert(std::atomic<int64_t>::is_always_lock_free); // required in a shared file
constexpr size_t kHeaderBytes = 4096;

// One process's mapping of a file.
struct View {
  Header* header;
  size_t bytes;
  int file; // kNoFile in a receiver

  bool is_received() const {
    return file == Parcel::kNoFile;
  }

  ~View() {
    if (is_received()) {
      header->receivers.fetch_sub(1);
    } else {
      close(file);
    }
    munmap(header, kHeaderBytes + bytes);
  }
};

void release_view(void* context) {
  delete static_cast<View*>(context);
}

View* view_of(const c10::DataPtr& host) {
  const c10::DataPtr& own = owning_host(host);
  return own.get_deleter() == &release_view ? static_cast<View*>(own.get_context()) : nullptr;
}

std::unique_ptr<View> make_view(void* mapped, size_t bytes, int file) {
  return std::unique_ptr<View>(new View{static_cast<Header*>(mapped), bytes, file});
}

c10::DataPtr as_host_memory(std::unique_ptr<View> view) {
  void* address = reinterpret_cast<char*>(view->header) + kHeaderBytes;
  return {address, view.release(), &release_view, c10::Device(at::kCPU)};
}

c10::DataPtr new_shared(size_t bytes) {
  const int file = make_shared_file(kHeaderBytes + bytes);
  return as_host_memory(make_view(map_shared_file(file, kHeaderBytes + bytes), bytes, file));
}

std::unique_ptr<View> open_parcel(const Parcel& parcel) {
  void* mapped = map_file_of(parcel.process, parcel.file, kHeaderBytes + parcel.bytes);
  return make_view(mapped, parcel.bytes, Parcel::kNoFile);
}

// Memory that this process has freed while receivers still use it.
struct MemoryKeptForReceivers {
  struct Piece {
    Block* block;
    c10::DeviceIndex device;
    c10::DataPtr host;
    c10::Storage shadow; // of twins that may still be in use

    bool is_unused() const {
      return view_of(host)->header->receivers.load() == 0 && (!shadow || shadow.use_count() == 1);
    }
  };
  std::mutex mutex;
  std::vector<Piece> pieces;

  static MemoryKeptForReceivers& get() {
    static auto* kept = new MemoryKeptForReceivers(); // memory may be freed while the process ends
    return *kept;
  }
};

// Returns the file mapping of `memory`, which is the memory of `storage`. Moves the memory into a
// new file if it is not in one.
const View& move_to_file(
    c10::StorageImpl& storage, DeviceMemory& memory, std::chrono::duration<double> longest_wait) {
  TwinLock lock(memory);
  if (const View* view = view_of(memory.host)) {
    return *view;
  }
  TORCH_CHECK(
      memory.block != nullptr && memory.block->pool->owner == kNoPool && !has_aliases(memory),
      "memory of a CUDA graph cannot be sent to another process; send a clone");
  TORCH_CHECK(
      lock.wait_for_twins(longest_wait),
      "memory of cuda:", static_cast<int>(memory.device), " cannot be sent to another process: a "
      "kernel of another thread, or a collective, still used it after ", longest_wait.count(),
      " s; wait for its end before you send, or send a clone");
  if (const View* view = view_of(memory.host)) {
    return *view; // another thread sent it while this one waited
  }
  auto shared = new_shared(memory.bytes);
  std::memcpy(shared.get(), memory.host.get(), memory.bytes);
  change_host(storage, memory, std::move(shared));
  return *view_of(memory.host);
}

} // namespace

Parcel send_memory(c10::StorageImpl& storage, std::chrono::duration<double> longest_wait) {
  collect_sent();
  give_own_memory(storage);
  DeviceMemory* memory = device_memory(storage.data_ptr());
  TORCH_CHECK(memory != nullptr, "only memory of a virtual GPU can be sent to another process");
  if (shape_only()) {
    share_with_processes(*memory);
    return {getpid(), Parcel::kNoFile, memory->bytes};
  }
  const View& view = move_to_file(storage, *memory, longest_wait);
  // PyTorch's message, from torch/csrc/StorageSharing.cpp
  TORCH_CHECK(
      !view.is_received(),
      "Attempted to send CUDA tensor received from another process; this is not currently "
      "supported. Consider cloning before sending.");
  view.header->receivers.fetch_add(1);
  return {getpid(), view.file, memory->bytes};
}

at::Tensor receive_memory(const Parcel& parcel, c10::DeviceIndex device) {
  check_device_index(device);
  c10::DataPtr host;
  if (parcel.file != Parcel::kNoFile) {
    host = as_host_memory(open_parcel(parcel));
  }
  const auto bytes = static_cast<int64_t>(parcel.bytes);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), parcel.bytes,
      wrap_received_memory(std::move(host), parcel.bytes, device), device_allocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(at::kByte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

void let_go(const Parcel& parcel) {
  if (parcel.file != Parcel::kNoFile) {
    open_parcel(parcel); // closes it at once, which decrements the count of receivers
  }
}

bool is_sent_memory(const c10::DataPtr& host) {
  return view_of(host) != nullptr;
}

bool keep_for_receivers(DeviceMemory& memory) {
  const View* view = view_of(memory.host);
  if (view == nullptr || view->header->receivers.load() == 0) {
    return false;
  }
  memory.drop_spare_twin();
  auto& kept = MemoryKeptForReceivers::get();
  std::lock_guard<std::mutex> guard(kept.mutex);
  kept.pieces.push_back(
      {memory.block, memory.device, std::move(memory.host), std::move(memory.shadow)});
  return true;
}

void collect_sent() {
  auto& kept = MemoryKeptForReceivers::get();
  std::lock_guard<std::mutex> guard(kept.mutex);
  const auto first = std::partition(
      kept.pieces.begin(), kept.pieces.end(), [](const auto& piece) { return !piece.is_unused(); });
  for (auto piece = first; piece != kept.pieces.end(); ++piece) {
    caching_allocator(piece->device).free(piece->block);
  }
  kept.pieces.erase(first, kept.pieces.end());
}

} // namespace anyrig::virtual_gpu
