// Operators of libraries other than PyTorch. A program may load such a library at any time.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

// Installs the fallback that runs the CPU kernel of a foreign operator without a CUDA kernel.
void install_foreign_operators();

// Notes the operators that exist; call before loading a library.
void note_operators();

// Replaces the CUDA kernel of each operator registered since note_operators() by its CPU kernel, if
// it has both: the CUDA kernel would launch on a real GPU with host addresses.
void take_over_operators();

// Runs each operator of a library's namespace on the host as a whole, if it has a CPU kernel or one
// for all devices, whose steps would otherwise run as virtual GPU operators. Does not check that
// the operands share a device.
void run_library_on_host(const std::string& library);

} // namespace anyrig::virtual_gpu
