// DistributedDataParallel looks its timer up by device type, in c10d's TimerRegistry.
#ifdef USE_C10D_GLOO

#include "collectives/ddp_timer.h"

#include "device/device.h"

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace anyrig::virtual_gpu {
namespace {

class DdpTimer final : public c10d::Timer {
 public:
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start);
    const int64_t to = getTimeRef(end);
    // An event that did not happen in this iteration gives no duration.
    if (from == c10d::kUnsetTime || to == c10d::kUnsetTime || to < from) {
      return std::nullopt;
    }
    return to - from;
  }
};

} // namespace

void install_ddp_timer() {
  auto* registry = c10d::TimerRegistry();
  // A CUDA build has already registered its own timer, based on CUDA events, under this key.
  // Registering a key again ends the process unless the priority is higher or SetTerminate(false)
  // was called.
  registry->SetTerminate(false);
  registry->Register(
      kDeviceType,
      [](c10::Device /*device*/) -> std::unique_ptr<c10d::Timer> {
        return std::make_unique<DdpTimer>();
      },
      c10::REGISTRY_PREFERRED);
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
