#include "memory/known_values.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

namespace anyrig::virtual_gpu {
namespace {

// Pickled objects travel as bytes and get a larger limit.
constexpr size_t kMaxObjectBytes = size_t{64} << 20;
// ShapeOnly must not fill the host: all known tensors together, except small ones.
constexpr size_t kMaxKnownInAll = size_t{256} << 20;
constexpr size_t kSmallBytes = size_t{64} << 10;

std::atomic<size_t> kept_bytes{0};

// Returns whether values of `bytes` bytes may be kept, and counts them if so.
bool take_room(size_t bytes) {
  if (bytes <= kSmallBytes || kept_bytes.fetch_add(bytes) + bytes <= kMaxKnownInAll) {
    return true;
  }
  kept_bytes -= bytes;
  return false;
}

void return_room(const c10::Storage& storage) {
  if (storage && storage.nbytes() > kSmallBytes) {
    kept_bytes -= storage.nbytes();
  }
}

// The memory with known values, by address.
struct KnownMemory {
  struct Piece {
    uintptr_t end;
    c10::intrusive_ptr<KnownValues> values;
  };
  std::mutex mutex;
  std::map<uintptr_t, Piece> by_address;

  static KnownMemory& get() {
    static auto* known = new KnownMemory(); // memory may be freed while the process ends
    return *known;
  }
};

uintptr_t begin_of(const DeviceMemory& memory) {
  return static_cast<uintptr_t>(memory.block->address);
}

// Returns the record of `memory`, which is made at the first call and stays until it is freed.
KnownValues& values_of(DeviceMemory& memory) {
  if (auto* existing = memory.known.load(std::memory_order_acquire)) {
    return *existing;
  }
  auto& all = KnownMemory::get();
  std::lock_guard<std::mutex> guard(all.mutex);
  if (auto* existing = memory.known.load(std::memory_order_acquire)) {
    return *existing;
  }
  auto made = c10::make_intrusive<KnownValues>();
  auto* result = made.get();
  const uintptr_t begin = begin_of(memory);
  all.by_address.insert_or_assign(begin, KnownMemory::Piece{begin + memory.bytes, std::move(made)});
  memory.known.store(result, std::memory_order_release);
  return *result;
}

struct Extent {
  size_t begin = 0; // byte offsets in the storage
  size_t end = 0;
};

// Returns the range that the elements of a tensor span, including gaps.
Extent extent_of(const at::TensorBase& tensor) {
  const auto size = tensor.element_size();
  const auto begin = static_cast<size_t>(tensor.storage_offset()) * size;
  if (tensor.numel() == 0) {
    return {begin, begin};
  }
  size_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += static_cast<size_t>((tensor.size(dim) - 1) * tensor.stride(dim));
  }
  return {begin, begin + (last + 1) * size};
}

// Returns the memory of a tensor whose values can be known; otherwise null. Values of conjugated
// and negated views would need to be converted.
DeviceMemory* memory_of(const at::TensorBase& tensor) {
  const bool plain = tensor.device().type() == kDeviceType && !tensor.is_nested() &&
      tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg();
  return plain ? device_memory(tensor.storage().data_ptr()) : nullptr;
}

at::Tensor share_values(c10::Storage storage, const at::TensorBase& tensor) {
  auto values = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = values.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return values;
}

at::Tensor without_elements(const at::TensorBase& tensor) {
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

bool can_be_kept(const DeviceMemory& memory, at::ScalarType dtype) {
  const size_t limit = dtype == at::kByte ? kMaxObjectBytes : kMaxKnownBytes;
  return memory.block != nullptr && memory.bytes <= limit &&
      !memory.is_shared_with_processes.load(std::memory_order_relaxed);
}

WhyUnknown why_not_kept(const DeviceMemory& memory) {
  return memory.is_shared_with_processes ? WhyUnknown::FromOutside : WhyUnknown::TooMany;
}

} // namespace

// ---- one allocation

KnownValues::~KnownValues() {
  return_room(storage_);
}

c10::Storage KnownValues::known_until(size_t bytes) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return bytes <= bytes_ ? storage_ : c10::Storage();
}

std::pair<c10::Storage, size_t> KnownValues::known_beginning() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return {storage_, bytes_};
}

c10::Storage KnownValues::extend(size_t begin, size_t end, size_t capacity) {
  c10::Storage dropped; // freed after the lock
  std::lock_guard<std::mutex> guard(mutex_);
  if (begin > bytes_) {
    drop(dropped);
    return {};
  }
  if (!storage_) {
    if (!take_room(capacity)) {
      return {};
    }
    storage_ = c10::Storage(c10::Storage::use_byte_size_t(), capacity, c10::GetCPUAllocator());
  }
  bytes_ = std::max(bytes_, end);
  return storage_;
}

void KnownValues::replace(c10::Storage values, size_t bytes) {
  c10::Storage dropped;
  std::lock_guard<std::mutex> guard(mutex_);
  drop(dropped);
  if (take_room(values.nbytes())) {
    storage_ = std::move(values);
    bytes_ = bytes;
  }
}

void KnownValues::forget() {
  c10::Storage dropped;
  std::lock_guard<std::mutex> guard(mutex_);
  drop(dropped);
}

void KnownValues::drop(c10::Storage& storage) {
  return_room(storage_);
  storage = std::move(storage_);
  storage_ = c10::Storage();
  bytes_ = 0;
}

// ---- tensors

at::Tensor known_values(const at::TensorBase& tensor) {
  const DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr) {
    return {};
  }
  if (tensor.numel() == 0) {
    return without_elements(tensor);
  }
  const KnownValues* known = memory->known.load(std::memory_order_acquire);
  if (known == nullptr) {
    return {};
  }
  auto storage = known->known_until(extent_of(tensor).end);
  return storage ? share_values(std::move(storage), tensor) : at::Tensor();
}

bool may_be_known(const at::TensorBase& tensor) {
  const DeviceMemory* memory = memory_of(tensor);
  return memory != nullptr &&
      (memory->known.load(std::memory_order_relaxed) != nullptr || tensor.numel() == 0);
}

at::Tensor values_to_write(const at::TensorBase& tensor) {
  DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr) {
    forget_values(tensor, WhyUnknown::NotComputed);
    return {};
  }
  if (tensor.numel() == 0) {
    return without_elements(tensor);
  }
  const auto [begin, end] = extent_of(tensor);
  if (!can_be_kept(*memory, tensor.scalar_type())) {
    forget_values(tensor, why_not_kept(*memory));
    return {};
  }
  KnownValues& known = values_of(*memory);
  // Writing with gaps, as to every second element, extends nothing.
  const bool follows = tensor.is_non_overlapping_and_dense() || known.known_until(end);
  auto storage = follows ? known.extend(begin, end, memory->bytes) : c10::Storage();
  if (!storage) {
    forget_values(tensor, follows ? WhyUnknown::TooMany : WhyUnknown::NeverWritten);
    return {};
  }
  return share_values(std::move(storage), tensor);
}

void store_values(const at::TensorBase& tensor, at::Tensor values) {
  DeviceMemory* memory = memory_of(tensor);
  if (memory == nullptr || tensor.sizes() != values.sizes() ||
      tensor.scalar_type() != values.scalar_type() || values.is_conj() || values.is_neg()) {
    forget_values(tensor, WhyUnknown::NotComputed);
    return;
  }
  if (!can_be_kept(*memory, tensor.scalar_type())) {
    forget_values(tensor, why_not_kept(*memory));
    return;
  }
  if (tensor.numel() == 0) {
    return;
  }
  const bool fits = tensor.storage_offset() == 0 && values.storage_offset() == 0 &&
      tensor.strides() == values.strides() && tensor.is_non_overlapping_and_dense() &&
      values.storage().nbytes() >= memory->bytes;
  const size_t bytes = tensor.nbytes();
  if (fits && values.use_count() == 1 && values.storage().use_count() == 1) {
    KnownValues& known = values_of(*memory);
    if (bytes == memory->bytes || !known.known_until(bytes + 1)) {
      memory->why_unknown = WhyUnknown::TooMany; // of all tensors together
      known.replace(values.storage(), bytes);
      return;
    }
  }
  if (auto to = values_to_write(tensor); to.defined()) {
    to.copy_(values);
  }
}

void forget_values(const at::TensorBase& tensor, WhyUnknown why) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.device().type() != kDeviceType) {
    return;
  }
  const c10::Storage& storage = tensor.storage();
  if (DeviceMemory* memory = device_memory(storage.data_ptr())) {
    memory->why_unknown.store(why, std::memory_order_relaxed);
    if (auto* known = memory->known.load(std::memory_order_acquire)) {
      known->forget();
    }
  } else if (const auto begin = reinterpret_cast<uintptr_t>(storage.data())) {
    forget_addresses(begin, begin + storage.nbytes());
  }
}

WhyUnknown why_unknown(const at::TensorBase& tensor) {
  const DeviceMemory* memory = tensor.defined() && tensor.has_storage()
      ? device_memory(tensor.storage().data_ptr())
      : nullptr;
  return memory == nullptr ? WhyUnknown::FromOutside
                           : memory->why_unknown.load(std::memory_order_relaxed);
}

void forget_addresses(uintptr_t begin, uintptr_t end) {
  auto& all = KnownMemory::get();
  std::lock_guard<std::mutex> guard(all.mutex);
  auto piece = all.by_address.upper_bound(begin);
  if (piece != all.by_address.begin()) {
    --piece;
  }
  for (; piece != all.by_address.end() && piece->first < end; ++piece) {
    if (piece->second.end > begin) {
      piece->second.values->forget();
    }
  }
}

void share_with_processes(DeviceMemory& memory) {
  memory.is_shared_with_processes = true;
  memory.why_unknown = WhyUnknown::FromOutside;
  if (auto* known = memory.known.load(std::memory_order_acquire)) {
    known->forget();
  }
}

ValuesInDoubt::ValuesInDoubt(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    const DeviceMemory* memory = memory_of(tensor);
    if (auto* known = memory == nullptr ? nullptr : memory->known.load()) {
      values_.push_back(c10::intrusive_ptr<KnownValues>::unsafe_reclaim_from_nonowning(known));
    }
  }
}

void ValuesInDoubt::forget() const {
  for (const auto& known : values_) {
    known->forget();
  }
}

void move_known_values(const DeviceMemory& from, DeviceMemory& to, bool is_object) {
  const KnownValues* known = from.known.load(std::memory_order_acquire);
  if (known == nullptr || to.block == nullptr || to.bytes > kMaxObjectBytes) {
    return;
  }
  const auto [old_values, bytes] = known->known_beginning();
  if (!old_values || bytes == 0) {
    return;
  }
  const size_t kept = std::min(bytes, to.bytes);
  c10::Storage values(c10::Storage::use_byte_size_t(), to.bytes, c10::GetCPUAllocator());
  auto* begin = static_cast<char*>(values.mutable_data());
  std::memcpy(begin, old_values.data(), kept);
  std::memset(begin + kept, 0, to.bytes - kept);
  to.why_unknown = WhyUnknown::TooMany; // of all tensors together
  const bool knows_all = is_object && bytes >= from.bytes;
  values_of(to).replace(std::move(values), knows_all ? to.bytes : kept);
}

// ---- for memory.cpp

void know_all(DeviceMemory& memory, c10::DataPtr host) {
  if (memory.block != nullptr && memory.bytes <= kMaxObjectBytes) {
    c10::Storage storage(
        c10::Storage::use_byte_size_t(), memory.bytes, std::move(host), /*allocator=*/nullptr);
    values_of(memory).replace(std::move(storage), memory.bytes);
  }
}

void release_known_values(DeviceMemory& memory) {
  if (memory.known.load(std::memory_order_acquire) == nullptr) {
    return;
  }
  c10::intrusive_ptr<KnownValues> released; // freed after the lock
  auto& all = KnownMemory::get();
  std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.by_address.find(begin_of(memory));
  if (found != all.by_address.end() && found->second.values.get() == memory.known.load()) {
    released = std::move(found->second.values);
    all.by_address.erase(found);
  }
}

} // namespace anyrig::virtual_gpu
