#pragma once

namespace anyrig::virtual_gpu {

// Registers virtual events with PyTorch's profiler, so that ProfilerActivity.CUDA measures virtual
// time. NVTX ranges are ignored.
void install_profiler_events();

} // namespace anyrig::virtual_gpu
