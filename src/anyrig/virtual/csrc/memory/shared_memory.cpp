#include "memory/shared_memory.h"

#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "memory/receivers.h"
#include "memory/shared_file.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

// One process's mapping of a file.
struct View {
  Receivers* receivers; // precede the bytes, which start on a page of their own
  size_t bytes;
  int file; // kNoFile in a receiver
  Receivers::Entry* entry; // of this process, in a receiver

  bool is_received() const { return file == Parcel::kNoFile; }

  ~View() {
    if (is_received()) {
      receivers->close(entry);
    } else {
      close(file);
    }
    munmap(receivers, Receivers::kBytes + bytes);
  }
};

void release_view(void* context) {
  delete static_cast<View*>(context);
}

View* view_of(const c10::DataPtr& host) {
  const c10::DataPtr& own = owning_host(host);
  return own.get_deleter() == &release_view ? static_cast<View*>(own.get_context()) : nullptr;
}

c10::DataPtr as_host_memory(std::unique_ptr<View> view) {
  void* address = reinterpret_cast<char*>(view->receivers) + Receivers::kBytes;
  return {address, view.release(), &release_view, c10::Device(at::kCPU)};
}

c10::DataPtr new_shared(size_t bytes) {
  const int file = make_shared_file(Receivers::kBytes + bytes);
  auto* receivers = static_cast<Receivers*>(map_shared_file(file, Receivers::kBytes + bytes));
  return as_host_memory(std::unique_ptr<View>(new View{receivers, bytes, file, nullptr}));
}

std::unique_ptr<View> open_parcel(const Parcel& parcel) {
  void* mapped = map_file_of(parcel.process, parcel.file, Receivers::kBytes + parcel.bytes);
  auto* receivers = static_cast<Receivers*>(mapped);
  return std::unique_ptr<View>(
      new View{receivers, parcel.bytes, Parcel::kNoFile, receivers->open()});
}

// Memory that this process has freed while receivers still use it.
struct MemoryKeptForReceivers {
  struct Piece {
    Block* block;
    c10::DeviceIndex device;
    c10::DataPtr host;
    c10::Storage shadow; // of twins that may still be in use

    bool is_unused(LiveProcesses& live) const {
      return view_of(host)->receivers->are_gone(live) && (!shadow || shadow.use_count() == 1);
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
    c10::StorageImpl& storage,
    DeviceMemory& memory,
    std::chrono::duration<double> longest_wait) {
  TwinLock lock(memory);
  if (const View* view = view_of(memory.host)) {
    return *view;
  }
  TORCH_CHECK(
      memory.block != nullptr && memory.block->pool->owner == kNoPool && !has_aliases(memory),
      "memory of a CUDA graph cannot be sent to another process; send a clone");
  TORCH_CHECK(
      lock.wait_for_twins(longest_wait), "memory of cuda:", static_cast<int>(memory.device),
      " cannot be sent to another process: a "
      "kernel of another thread, or a collective, still used it after ",
      longest_wait.count(), " s; wait for its end before you send, or send a clone");
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
  view.receivers->add_parcel();
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
    open_parcel(parcel); // closes it at once, so that the parcel is gone
  }
}

bool is_sent_memory(const c10::DataPtr& host) {
  return view_of(host) != nullptr;
}

bool keep_for_receivers(DeviceMemory& memory) {
  const View* view = view_of(memory.host);
  if (C10_LIKELY(view == nullptr)) {
    return false;
  }
  LiveProcesses live;
  if (view->receivers->are_gone(live)) {
    return false;
  }
  memory.take_spare_twin();
  auto& kept = MemoryKeptForReceivers::get();
  std::lock_guard<std::mutex> guard(kept.mutex);
  kept.pieces.push_back(
      {memory.block, memory.device, std::move(memory.host), std::move(memory.shadow)});
  return true;
}

std::vector<Block*> take_unused_sent(c10::DeviceIndex device) {
  auto& kept = MemoryKeptForReceivers::get();
  std::lock_guard<std::mutex> guard(kept.mutex);
  LiveProcesses live;
  const auto first =
      std::partition(kept.pieces.begin(), kept.pieces.end(), [device, &live](const auto& piece) {
        return piece.device != device || !piece.is_unused(live);
      });
  std::vector<Block*> blocks;
  for (auto piece = first; piece != kept.pieces.end(); ++piece) {
    blocks.push_back(piece->block);
  }
  kept.pieces.erase(first, kept.pieces.end());
  return blocks;
}

void collect_sent() {
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    for (Block* block : take_unused_sent(device)) {
      caching_allocator(device).free(block);
    }
  }
}

} // namespace anyrig::virtual_gpu
