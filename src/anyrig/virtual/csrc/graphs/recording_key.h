// The dispatch key under which calls are recorded.
#pragma once

#include <c10/core/DispatchKey.h>

namespace anyrig::virtual_gpu {

// PyTorch reserves this key for fake tensors outside of PyTorch and does not use it itself. It
// comes after autograd and autocast and before the kernels. A thread includes it only during a
// capture (backward threads inherit it), so other calls have no overhead.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

// Registers the recording of all operators under the key.
void install_recording();

} // namespace anyrig::virtual_gpu
