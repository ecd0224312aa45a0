// What PyTorch's tracer of GPU calls (torch.cuda._gpu_trace) is told, on which its CUDA sanitizer
// builds: events, streams, memory and waits, from the places where CUDA's own code tells it.
#pragma once

#include "device/device.h"
#include "time/streams.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/GPUTrace.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

inline bool is_traced() {
  return C10_UNLIKELY(c10::impl::GPUTrace::haveState);
}

// An address or a stream, as the listener gets it.
inline uintptr_t as_traced(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}
inline uintptr_t as_traced(const c10::Stream& stream) {
  return handle_of(stream);
}

// Calls `tell`, a member of PyInterpreterVTable, if somebody listens. It takes the GIL.
template <class... Declared, class... Given>
void trace(
    void (c10::impl::PyInterpreterVTable::*tell)(c10::DeviceType, Declared...) const,
    const Given&... given) {
  if (is_traced()) {
    ((**c10::impl::GPUTrace::get_trace()).*tell)(kDeviceType, as_traced(given)...);
  }
}

} // namespace anyrig::virtual_gpu
