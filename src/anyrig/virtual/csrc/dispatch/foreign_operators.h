// Operators of other libraries, which may be loaded at any time.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

// Gives operators that have no kernel for CUDA, of other libraries than PyTorch, that of the CPU.
void install_foreign_operators();

// Remembers which operators there are, before a library is loaded.
void note_operators();

// Gives operators that came since, and have kernels for CUDA and for the CPU, that of the CPU: the
// other would start kernels of a real card, on memory of the host.
void take_over_operators();

// Runs each operator of a library's namespace whole on the host, where it has a kernel that can:
// one for the CPU, or one for all devices, whose steps would otherwise be taken on the card. Its
// operands may lie on several devices.
void run_library_on_host(const std::string& library);

} // namespace anyrig::virtual_gpu
