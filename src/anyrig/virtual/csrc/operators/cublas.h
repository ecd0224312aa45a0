// The workspaces that cuBLAS holds inside the pools of the caching allocator.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace anyrig::virtual_gpu {

// Allocates what PyTorch gives cuBLAS to work in: before 2.15 once per handle and stream, from then
// on for the call. A thread takes a handle for a device at its first product there and leaves it to
// other threads when it ends.
void provide_cublas_workspace(c10::DeviceIndex device);

// torch._C._cuda_clearCublasWorkspaces
void clear_cublas_workspaces();

// The size of a workspace on the current device, and a size for all that are made from now on; none
// leaves it to the environment and the device again.
size_t cublas_workspace_bytes();
void set_cublas_workspace_bytes(std::optional<int64_t> bytes);

} // namespace anyrig::virtual_gpu
