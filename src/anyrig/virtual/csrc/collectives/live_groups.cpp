#include "collectives/live_groups.h"

#ifdef USE_C10D_GLOO

#include "collectives/process_group.h"

#include <mutex>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

// For transfers that a program started and did not wait for; CUDA would drop them at once.
constexpr std::chrono::seconds kExitTimeout{10};

// Never freed: groups may outlive static destruction.
struct LiveGroups {
  std::mutex mutex;
  std::set<NcclGroup*> groups;
};

LiveGroups& live() {
  static auto* live = new LiveGroups();
  return *live;
}

// Returns references that keep each group alive, even if another thread drops it meanwhile. Leaves
// out groups whose destructor has started.
std::vector<c10::intrusive_ptr<NcclGroup>> hold_groups() {
  std::vector<c10::intrusive_ptr<NcclGroup>> held;
  // Freed after the lock is released: a group's destructor takes the mutex.
  std::vector<c10::weak_intrusive_ptr<NcclGroup>> weak;
  std::lock_guard<std::mutex> guard(live().mutex);
  for (auto* group : live().groups) {
    c10::raw::weak_intrusive_ptr::incref(group);
    weak.push_back(c10::weak_intrusive_ptr<NcclGroup>::reclaim(group));
    if (auto strong = weak.back().lock()) {
      held.push_back(std::move(strong));
    }
  }
  return held;
}

} // namespace

void add_live_group(NcclGroup* group) {
  std::lock_guard<std::mutex> guard(live().mutex);
  live().groups.insert(group);
}

void remove_live_group(NcclGroup* group) {
  std::lock_guard<std::mutex> guard(live().mutex);
  live().groups.erase(group);
}

void join_collectives(c10::DeviceIndex device) {
  for (const auto& group : hold_groups()) {
    group->join(device);
  }
}

void close_groups(bool failed) {
  for (const auto& group : hold_groups()) {
    failed ? group->abort() : group->shutdown_within(kExitTimeout);
  }
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void join_collectives(c10::DeviceIndex /*device*/) {}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
