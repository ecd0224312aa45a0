#include "device/host_waits.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace anyrig::virtual_gpu {
namespace {

std::atomic<WaitDebug> debug_of_waits{WaitDebug::Silent};

} // namespace

void set_wait_debug(WaitDebug mode) {
  debug_of_waits.store(mode, std::memory_order_relaxed);
}

WaitDebug wait_debug() {
  return debug_of_waits.load(std::memory_order_relaxed);
}

void note_host_wait() {
  // c10/cuda/CUDAFunctions.cpp
  constexpr auto kText = "called a synchronizing CUDA operation";
  switch (wait_debug()) {
    case WaitDebug::Silent:
      return;
    case WaitDebug::Warns:
      TORCH_WARN(kText);
      return;
    case WaitDebug::Raises:
      TORCH_CHECK(false, kText);
  }
}

} // namespace anyrig::virtual_gpu
