#include "collectives/live_groups.h"

#ifdef USE_C10D_GLOO

#include "collectives/process_group.h"

#include <mutex>
#include <set>

namespace anyrig::virtual_gpu {
namespace {

// For what a program left under way and did not wait for; a card would drop it at once.
constexpr std::chrono::seconds kLongestEnd{10};

// Never freed: groups may outlive static destruction.
struct LiveGroups {
  std::mutex mutex;
  std::set<NcclGroup*> groups;
};

LiveGroups& live() {
  static auto* live = new LiveGroups();
  return *live;
}

// Held, so that a group that another thread lets go of meanwhile stays; one that is being destroyed
// already is left out.
std::vector<c10::intrusive_ptr<NcclGroup>> hold_all() {
  std::vector<c10::intrusive_ptr<NcclGroup>> held;
  // Dropped without the mutex, which the end of a group takes.
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
  for (const auto& group : hold_all()) {
    group->join(device);
  }
}

void close_groups(bool failed) {
  for (const auto& group : hold_all()) {
    failed ? group->abort() : group->shutdown_within(kLongestEnd);
  }
}

} // namespace anyrig::virtual_gpu

#else

namespace anyrig::virtual_gpu {

void join_collectives(c10::DeviceIndex /*device*/) {}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
