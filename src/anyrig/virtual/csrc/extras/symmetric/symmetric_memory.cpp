#ifdef USE_C10D_GLOO

#include "extras/symmetric/symmetric_memory.h"

#include "device/device.h"
#include "device/override.h"
#include "time/capture.h"
#include "time/clock.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <map>
#include <mutex>

namespace anyrig::virtual_gpu {
namespace {

using c10d::symmetric_memory::SymmetricMemory;

// The result of a rendezvous, as the program sees it.
class VirtualSymmetricMemory final : public SymmetricMemory {
 public:
  VirtualSymmetricMemory(std::shared_ptr<Peers> peers, size_t offset)
      : peers_(std::move(peers)), signal_pad_(signal_pad_tensor(peers_)), offset_(offset) {}

  const std::shared_ptr<Peers>& peers() const { return peers_; }

  std::vector<void*> get_buffer_ptrs() override {
    return addresses([](const SharedPiece& piece) { return piece.buffer(); });
  }
  std::vector<void*> get_signal_pad_ptrs() override {
    return addresses([](const SharedPiece& piece) -> void* { return piece.signal_pad(); });
  }
  void** get_buffer_ptrs_dev() override { return peers_->buffer_pointers(); }
  void** get_signal_pad_ptrs_dev() override { return peers_->signal_pad_pointers(); }
  size_t get_buffer_size() override { return own().sizes().buffer_bytes; }
  size_t get_offset() override { return offset_; }
  bool has_multicast_support() override { return peers_->multicast() != nullptr; }
  void* get_multicast_ptr() override {
    return has_multicast_support() ? static_cast<char*>(peers_->multicast()) + offset_ : nullptr;
  }

  void barrier(int channel, size_t timeout_ms) override {
    check_channel(channel);
    call_signal(signal_pad_, SignalKind::Barrier, /*peer=*/-1, channel, timeout_ms);
  }
  void put_signal(int to, int channel, size_t timeout_ms) override {
    check_channel(channel);
    check_peer(to);
    call_signal(signal_pad_, SignalKind::Put, to, channel, timeout_ms);
  }
  void wait_signal(int from, int channel, size_t timeout_ms) override {
    check_channel(channel);
    check_peer(from);
    call_signal(signal_pad_, SignalKind::Wait, from, channel, timeout_ms);
  }

  int get_rank() override { return peers_->rank(); }
  int get_world_size() override { return peers_->size(); }
  c10::Device get_device() override { return {kDeviceType, peers_->device()}; }
  bool world_within_direct_access() override { return true; }

 private:
  const SharedPiece& own() const { return peers_->piece(peers_->rank()); }

  template <class AddressOf>
  std::vector<void*> addresses(AddressOf address_of) const {
    std::vector<void*> result;
    for (int rank = 0; rank < peers_->size(); ++rank) {
      result.push_back(address_of(peers_->piece(rank)));
    }
    return result;
  }

  void check_channel(int channel) const {
    TORCH_CHECK(
        channel >= 0,
        "channel for barrier(), put_signal() and wait_signal() must be greater than 0 (got ",
        channel, ")");
    const size_t words = own().sizes().signal_bytes / sizeof(uint32_t);
    const size_t channels = words / static_cast<size_t>(peers_->size());
    TORCH_CHECK(
        static_cast<size_t>(channel) < channels,
        "The maximum supported channel for barrier(), put_signal() and wait_signal() is ",
        channels - 1, " (got ", channel, ")");
  }

  // PyTorch 2.13 does not check the rank; its kernel would access a signal pad that does not exist.
  void check_peer(int peer) const {
    TORCH_CHECK(
        peer >= 0 && peer < peers_->size(), "rank must be in [0, ", peers_->size(), ") (got ", peer,
        ")");
  }

  std::shared_ptr<Peers> peers_;
  at::Tensor signal_pad_;
  size_t offset_;
};

// One allocation of SymmetricAllocator.
struct Allocation {
  std::shared_ptr<SharedPiece> piece;
  std::optional<std::string> group;
  std::map<std::string, std::shared_ptr<Peers>> peers_by_group;
};

struct Allocations {
  std::mutex mutex;
  std::map<char*, std::shared_ptr<Allocation>> by_address;

  static Allocations& get() {
    static auto* allocations = new Allocations(); // PyTorch's statics may outlive ours
    return *allocations;
  }

  // Returns the allocation that contains `address` and the offset of `address` in it; null if none
  // does.
  std::pair<std::shared_ptr<Allocation>, size_t> find(void* address) {
    std::lock_guard<std::mutex> guard(mutex);
    auto* place = static_cast<char*>(address);
    auto after = by_address.upper_bound(place);
    if (after == by_address.begin()) {
      return {};
    }
    const auto& [first, allocation] = *--after;
    const auto offset = static_cast<size_t>(place - first);
    const size_t bytes = allocation->piece->sizes().buffer_bytes;
    return offset < std::max<size_t>(bytes, 1) ? std::pair(allocation, offset)
                                               : std::pair<std::shared_ptr<Allocation>, size_t>();
  }
};

// CUDASymmetricMemoryAllocator on virtual devices, with its error messages.
class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    const auto index = static_cast<c10::DeviceIndex>(device < 0 ? current_device() : device);
    check_device_index(index);
    const PieceSizes sizes{size, c10d::symmetric_memory::get_signal_pad_size()};
    auto allocation = std::make_shared<Allocation>();
    allocation->piece = std::make_shared<SharedPiece>(sizes, index);
    allocation->group = group;
    auto& allocations = Allocations::get();
    std::lock_guard<std::mutex> guard(allocations.mutex);
    void* address = allocation->piece->buffer();
    allocations.by_address.emplace(static_cast<char*>(address), std::move(allocation));
    return address;
  }

  void free(void* address) override {
    const auto allocation = allocation_at(address);
    if (allocation == nullptr) {
      return;
    }
    if (!is_capture_underway()) {
      // CUDA waits for the device's work before it unmaps memory.
      Clock::get().synchronize_device(allocation->piece->device());
    }
    auto& allocations = Allocations::get();
    std::lock_guard<std::mutex> guard(allocations.mutex);
    allocations.by_address.erase(static_cast<char*>(address));
  }

  size_t get_alloc_size(void* address) override {
    const auto allocation = allocation_at(address);
    TORCH_CHECK(
        allocation != nullptr,
        "CUDASymmetricMemoryAllocator::get_alloc_size: input must be allocated via "
        "CUDASymmetricMemoryAllocator::alloc");
    return allocation->piece->sizes().buffer_bytes;
  }

  c10::intrusive_ptr<SymmetricMemory> rendezvous(
      void* address,
      const std::optional<std::string>& group) override {
    const auto [allocation, offset] = Allocations::get().find(address);
    if (allocation == nullptr) {
      TORCH_WARN(
          "Pointer not within any SymmetricMemory allocation, is the tensor allocated from "
          "SymmetricMemory?");
      return nullptr;
    }
    const bool has_name = group.has_value() && !group->empty();
    TORCH_CHECK(
        has_name || allocation->group.has_value(),
        "CUDASymmetricMemory::rendezvous: `group_name` is neither specified during allocation nor "
        "passed to rendezvous().");
    const std::string& name = has_name ? *group : *allocation->group;
    auto& peers = allocation->peers_by_group[name];
    if (peers == nullptr) {
      peers = Peers::rendezvous(allocation->piece, name);
    }
    return c10::make_intrusive<VirtualSymmetricMemory>(peers, offset);
  }

  bool has_multicast_support(int device) override {
    check_device_index(device);
    return device_has_multicast(static_cast<c10::DeviceIndex>(device));
  }
  c10::DeviceType supported_device_type() override { return kDeviceType; }
  std::string name() override { return "CUDA"; }
  bool has_allocation(void* address) ANYRIG_OVERRIDE_FROM_2_12 {
    return allocation_at(address) != nullptr;
  }

 private:
  static std::shared_ptr<Allocation> allocation_at(void* address) {
    const auto [allocation, offset] = Allocations::get().find(address);
    return offset == 0 ? allocation : nullptr;
  }
};

void release_piece(void* context) {
  delete static_cast<std::shared_ptr<const SharedPiece>*>(context);
}

} // namespace

void keep_symmetric_memory_of(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto piece = piece_of(storage.data());
  // A storage with an owner already keeps its memory alive.
  if (piece == nullptr || storage.data_ptr().get_context() != nullptr) {
    return;
  }
  storage.set_data_ptr_noswap(
      {storage.mutable_data(), new std::shared_ptr<const SharedPiece>(std::move(piece)),
       &release_piece, storage.device()});
}

Rendezvous rendezvous(const at::Tensor& tensor, const std::string& group) {
  const auto memory = c10::dynamic_intrusive_pointer_cast<VirtualSymmetricMemory>(
      c10d::symmetric_memory::rendezvous(tensor, group));
  return memory == nullptr ? Rendezvous{} : Rendezvous{memory->peers(), memory->get_offset()};
}

void install_symmetric_memory() {
  auto allocator = c10::make_intrusive<SymmetricAllocator>();
  c10d::symmetric_memory::register_allocator(kDeviceType, allocator);
  c10d::symmetric_memory::register_availability("CUDA", allocator);
  install_symmetric_operators();
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
