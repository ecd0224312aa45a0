// The dispatch key through which calls are recorded.
#pragma once

#include <c10/core/DispatchKey.h>

namespace anyrig::virtual_gpu {

// Made for fake tensors outside of PyTorch, and used by nobody in it: below autograd and autocast,
// above the kernels. It is among the keys of a thread only while that captures (backward's threads
// inherit it), so that recording costs nothing else.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

// Registers the recording of all operators under the key.
void install_recording();

} // namespace anyrig::virtual_gpu
