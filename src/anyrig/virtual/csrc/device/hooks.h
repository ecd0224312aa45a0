#pragma once

namespace anyrig::virtual_gpu {

// Replaces PyTorch's CUDA hooks by those of the virtual devices.
void install_hooks();

} // namespace anyrig::virtual_gpu
