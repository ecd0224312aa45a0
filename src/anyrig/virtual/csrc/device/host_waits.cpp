#include "device/host_waits.h"

#include "device/gpu_trace.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace anyrig::virtual_gpu {
namespace {

std::atomic<WaitDebug> debug_of_waits{WaitDebug::Silent};

} // namespace

void set_wait_debug(WaitDebug mode) {
  TORCH_WARN_ONCE(
      "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing "
      "operations");
  TORCH_CHECK(
      WaitDebug::Silent <= mode && mode <= WaitDebug::Raises,
      "invalid value of debug_mode, expected one of 0,1,2");
  debug_of_waits.store(mode, std::memory_order_relaxed);
}

WaitDebug wait_debug() {
  return debug_of_waits.load(std::memory_order_relaxed);
}

bool watches_waits() {
  return wait_debug() != WaitDebug::Silent || is_traced();
}

void note_host_wait(const c10::Stream& stream) {
  // c10/cuda/CUDAFunctions.cpp
  constexpr auto kText = "called a synchronizing CUDA operation";
  switch (wait_debug()) {
    case WaitDebug::Silent:
      break;
    case WaitDebug::Warns:
      TORCH_WARN(kText);
      break;
    case WaitDebug::Raises:
      TORCH_CHECK(false, kText);
  }
  trace(&c10::impl::PyInterpreterVTable::trace_gpu_stream_synchronization, stream);
}

} // namespace anyrig::virtual_gpu
