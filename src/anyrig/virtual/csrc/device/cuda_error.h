// CUDA runtime errors that a program can meet, as PyTorch raises them.
#pragma once

#include <string>

namespace anyrig::virtual_gpu {

// Numbers from CUDA's driver_types.h.
enum class CudaError {
  MemoryAllocation = 2,
  Initialization = 3,
  InvalidDevice = 101,
  InvalidHandle = 400,
  IllegalState = 401,
  NotReady = 600,
  Assert = 710,
  LaunchFailure = 719,
  CaptureUnsupported = 900,
  CaptureInvalidated = 901,
  CaptureMerge = 902,
  CaptureUnjoined = 904,
  CaptureIsolation = 905,
  CaptureImplicit = 906,
  CapturedEvent = 907,
};

// Raises torch.AcceleratorError with CUDA's number and text. `details`, which CUDA would only
// print, follows the text.
[[noreturn]] void raise_cuda_error(CudaError error, const std::string& details = {});

} // namespace anyrig::virtual_gpu
