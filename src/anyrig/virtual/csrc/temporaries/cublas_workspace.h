// The cuBLAS workspaces, allocated from the pools of the caching allocator.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace anyrig::virtual_gpu {

// Allocates the cuBLAS workspace as PyTorch does: before 2.15 once for each handle and stream, from
// 2.15 on for each call. A thread takes a handle for a device at its first product there and
// returns it for reuse when it ends.
// `is_light`: whether cuBLASLt computes the product, which has a smaller workspace of its own.
void provide_cublas_workspace(c10::DeviceIndex device, bool is_light);

// Frees all workspaces (torch._C._cuda_clearCublasWorkspaces).
void clear_cublas_workspaces();

// Gets the workspace size on the current device, and sets the size of future workspaces. With none,
// the environment and the device determine the size again.
size_t cublas_workspace_bytes();
void set_cublas_workspace_bytes(std::optional<int64_t> bytes);

} // namespace anyrig::virtual_gpu
