#include "hazards/write_watch.h"

#include "time/origin.h"
#include "time/running_operator.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace anyrig::virtual_gpu {

std::atomic<bool> write_watch_is_on{false};

// The writes to the memory of one storage. Its members are guarded by the table's mutex.
struct WatchedMemory::Writes : std::enable_shared_from_this<WatchedMemory::Writes> {
  explicit Writes(uintptr_t begin) : begin(begin) {}
  ~Writes();

  const uintptr_t begin;
  uintptr_t end = 0;
  bool is_gone = false;
  std::vector<Write> list;
};

// The watched memory by its first address, one entry for each storage. A storage of DLPack begins
// inside the memory of another one. Never freed: tensors may outlive static objects.
class WriteTable {
 public:
  using Writes = WatchedMemory::Writes;

  static WriteTable& get() {
    static auto* table = new WriteTable();
    return *table;
  }

  // Returns the watched memory with a byte from `begin` up to `end`.
  c10::SmallVector<Writes*, 2> find(uintptr_t begin, uintptr_t end) const {
    c10::SmallVector<Writes*, 2> found;
    for (auto next = by_address.lower_bound(end); next != by_address.begin();) {
      Writes* writes = (--next)->second;
      if (begin < writes->end) {
        found.push_back(writes);
      } else if (!overlaps) {
        break; // earlier memory ends earlier
      }
    }
    return found;
  }

  std::mutex mutex;
  uint64_t last_number = 0;
  bool overlaps = false; // whether entries may have memory in common
  std::map<uintptr_t, Writes*> by_address;
};

namespace {

// The exact comparison of two strided tensors marks this many bytes at most.
constexpr uintptr_t kMostMarkedBytes = uintptr_t{1} << 26;

// A graph that is never freed would collect the writes of all optimizer steps. The oldest and the
// latest are kept.
constexpr size_t kMostWrites = 64;

bool is_dense(const Extent& extent) {
  int64_t count = 1;
  for (const int64_t size : extent.sizes) {
    count *= size;
  }
  return static_cast<uintptr_t>(count * extent.item_bytes) == extent.end - extent.begin;
}

// Calls `visit(address)` for each element until it returns true. Returns whether it did.
template <class Visit>
bool any_element(const Extent& extent, size_t dimension, uintptr_t address, const Visit& visit) {
  if (dimension == extent.sizes.size()) {
    return visit(address);
  }
  for (int64_t i = 0; i < extent.sizes[dimension]; ++i) {
    if (any_element(extent, dimension + 1, address, visit)) {
      return true;
    }
    address += static_cast<uintptr_t>(extent.strides[dimension] * extent.item_bytes);
  }
  return false;
}

} // namespace

Extent Extent::of(const at::TensorBase& tensor) {
  Extent extent;
  extent.item_bytes = static_cast<int64_t>(tensor.itemsize());
  const auto* storage = static_cast<const char*>(tensor.storage().data());
  if (tensor.is_nested()) { // has no sizes
    extent.sizes = {tensor.numel()};
    extent.strides = {1};
    extent.begin = reinterpret_cast<uintptr_t>(storage);
    extent.end = extent.begin + static_cast<uintptr_t>(tensor.numel() * extent.item_bytes);
    return extent;
  }
  extent.sizes = tensor.sizes().vec();
  extent.strides = tensor.strides().vec();
  extent.begin = reinterpret_cast<uintptr_t>(storage) +
      static_cast<uintptr_t>(tensor.storage_offset() * extent.item_bytes);
  int64_t last = 0;
  for (size_t i = 0; i < extent.sizes.size(); ++i) {
    last += (extent.sizes[i] - 1) * extent.strides[i];
  }
  extent.end = tensor.numel() == 0
      ? extent.begin
      : extent.begin + static_cast<uintptr_t>((last + 1) * extent.item_bytes);
  return extent;
}

bool Extent::overlaps(const Extent& other) const {
  const uintptr_t first = std::max(begin, other.begin);
  const uintptr_t last = std::min(end, other.end);
  if (first >= last) {
    return false;
  }
  if ((is_dense(*this) && is_dense(other)) || last - first > kMostMarkedBytes) {
    return true;
  }
  std::vector<bool> marked(last - first);
  any_element(*this, 0, begin, [&](uintptr_t address) {
    for (int64_t i = 0; i < item_bytes; ++i, ++address) {
      if (address >= first && address < last) {
        marked[address - first] = true;
      }
    }
    return false;
  });
  return any_element(other, 0, other.begin, [&](uintptr_t address) {
    for (int64_t i = 0; i < other.item_bytes; ++i, ++address) {
      if (address >= first && address < last && marked[address - first]) {
        return true;
      }
    }
    return false;
  });
}

WatchedMemory::Writes::~Writes() {
  auto& table = WriteTable::get();
  std::lock_guard<std::mutex> guard(table.mutex);
  const auto found = table.by_address.find(begin);
  if (found != table.by_address.end() && found->second == this) {
    table.by_address.erase(found);
  }
}

void watch_writes(bool on) {
  write_watch_is_on = on;
}

bool has_extent(const at::TensorBase& tensor) {
  return tensor.has_storage() && tensor.numel() > 0 &&
      (!tensor.is_nested() || tensor.is_contiguous());
}

void note_write(const at::TensorBase& tensor) {
  if (!has_extent(tensor)) {
    return;
  }
  auto& table = WriteTable::get();
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data());
  const uintptr_t end = begin + tensor.storage().nbytes();
  {
    std::lock_guard<std::mutex> guard(table.mutex);
    if (table.find(begin, end).empty()) {
      return;
    }
  }
  const int32_t line = find_line(); // may wait for the GIL, so without the lock
  Write write{0, Extent::of(tensor), line, std::string(RunningOperator::name())};
  std::lock_guard<std::mutex> guard(table.mutex);
  write.number = ++table.last_number;
  for (WriteTable::Writes* writes : table.find(begin, end)) {
    auto& list = writes->list;
    list.push_back(write);
    if (list.size() > kMostWrites) {
      list.erase(list.begin() + kMostWrites / 2);
    }
  }
}

void note_resize(const void* address) {
  auto& table = WriteTable::get();
  std::lock_guard<std::mutex> guard(table.mutex);
  const auto found = table.by_address.find(reinterpret_cast<uintptr_t>(address));
  if (found != table.by_address.end()) {
    found->second->is_gone = true;
    table.by_address.erase(found);
  }
}

WatchedMemory::WatchedMemory(const at::TensorBase& tensor) : extent_(Extent::of(tensor)) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data());
  auto& table = WriteTable::get();
  std::lock_guard<std::mutex> guard(table.mutex);
  made_after_ = table.last_number;
  auto& slot = table.by_address[begin];
  writes_ = slot == nullptr ? nullptr : slot->weak_from_this().lock();
  if (writes_ == nullptr) { // a slot whose object is about to be destroyed is taken over
    writes_ = std::make_shared<Writes>(begin);
    slot = writes_.get();
  }
  writes_->end = std::max(writes_->end, begin + tensor.storage().nbytes());
  table.overlaps =
      (table.overlaps && table.by_address.size() > 1) || table.find(begin, writes_->end).size() > 1;
}

std::optional<Write> WatchedMemory::first_write() const {
  std::lock_guard<std::mutex> guard(WriteTable::get().mutex);
  if (writes_->is_gone) {
    return std::nullopt;
  }
  const auto& list = writes_->list;
  const auto later = std::lower_bound(
      list.begin(), list.end(), made_after_ + 1,
      [](const Write& write, uint64_t number) { return write.number < number; });
  const auto found = std::find_if(
      later, list.end(), [this](const Write& write) { return extent_.overlaps(write.extent); });
  return found == list.end() ? std::nullopt : std::optional(*found);
}

} // namespace anyrig::virtual_gpu
