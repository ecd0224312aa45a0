#pragma once

namespace anyrig::virtual_gpu {

// Makes PyTorch's CUDA hooks those of the virtual devices.
void install_hooks();

} // namespace anyrig::virtual_gpu
