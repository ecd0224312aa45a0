#include "memory/idle_twins.h"

#include <mutex>
#include <vector>

namespace anyrig::virtual_gpu {
namespace {

constexpr size_t kMostIdleTwins = 256; // about 150 KB

struct IdleTwins {
  std::mutex mutex;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> twins;

  static IdleTwins& get() {
    static auto* idle = new IdleTwins(); // memory may be freed while the process ends
    return *idle;
  }
};

} // namespace

void keep_idle_twin(c10::intrusive_ptr<c10::TensorImpl> twin) {
  auto& shadow = *twin->unsafe_storage().unsafeGetStorageImpl();
  shadow.set_data_ptr_noswap(c10::DataPtr(nullptr, shadow.device()));
  auto& idle = IdleTwins::get();
  std::lock_guard<std::mutex> guard(idle.mutex);
  if (idle.twins.size() < kMostIdleTwins) {
    idle.twins.push_back(std::move(twin));
  }
}

c10::intrusive_ptr<c10::TensorImpl> take_idle_twin() {
  auto& idle = IdleTwins::get();
  std::lock_guard<std::mutex> guard(idle.mutex);
  if (idle.twins.empty()) {
    return {};
  }
  auto twin = std::move(idle.twins.back());
  idle.twins.pop_back();
  return twin;
}

} // namespace anyrig::virtual_gpu
