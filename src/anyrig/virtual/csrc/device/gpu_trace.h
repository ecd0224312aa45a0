// Callbacks to PyTorch's tracer of GPU calls (torch.cuda._gpu_trace), on which its CUDA sanitizer
// builds: events, streams, memory and synchronization, reported at the same places as in PyTorch's
// CUDA code.
#pragma once

#include "device/device.h"
#include "time/streams.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/GPUTrace.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

inline bool is_traced() {
  return c10::impl::GPUTrace::haveState;
}

// Converts an address or a stream to the listener's format.
inline uintptr_t as_traced(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}
inline uintptr_t as_traced(const c10::Stream& stream) {
  return handle_of(stream);
}

// Calls `callback`, a member of PyInterpreterVTable, if a listener is installed. Takes the GIL.
template <class... Declared, class... Given>
C10_ALWAYS_INLINE void trace(
    void (c10::impl::PyInterpreterVTable::*callback)(c10::DeviceType, Declared...) const,
    const Given&... given) {
  if (C10_UNLIKELY(is_traced())) {
    ((**c10::impl::GPUTrace::get_trace()).*callback)(kDeviceType, as_traced(given)...);
  }
}

} // namespace anyrig::virtual_gpu
