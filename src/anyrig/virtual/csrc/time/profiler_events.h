#pragma once

namespace anyrig::virtual_gpu {

// Gives PyTorch's profiler the events of virtual devices, so that ProfilerActivity.CUDA measures
// virtual time; and lets autograd's marks for NVTX go nowhere.
void install_profiler_events();

} // namespace anyrig::virtual_gpu
