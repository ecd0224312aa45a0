#include "device/cuda_error.h"

#include <c10/util/Exception.h>

#include <string>

namespace anyrig::virtual_gpu {
namespace {

// The hint that c10/cuda/CUDAMiscFunctions.cpp adds, except for an invalid device, which gets its
// own.
std::string hint(const std::string& name) {
  return "\nSearch for `" + name +
      "' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
      "information.";
}

std::string text_of(CudaError error) {
  switch (error) {
    case CudaError::MemoryAllocation:
      return "out of memory" + hint("cudaErrorMemoryAllocation");
    case CudaError::Initialization:
      return "initialization error" + hint("cudaErrorInitializationError");
    case CudaError::InvalidDevice:
      return "invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?";
    case CudaError::InvalidHandle:
      return "invalid resource handle" + hint("cudaErrorInvalidResourceHandle");
    case CudaError::IllegalState:
      return "the operation cannot be performed in the present state" +
          hint("cudaErrorIllegalState");
    case CudaError::CaptureUnsupported:
      return "operation not permitted when stream is capturing" +
          hint("cudaErrorStreamCaptureUnsupported");
    case CudaError::CaptureInvalidated:
      return "operation failed due to a previous error during capture" +
          hint("cudaErrorStreamCaptureInvalidated");
    case CudaError::CaptureMerge:
      return "operation would result in a merge of separate capture sequences" +
          hint("cudaErrorStreamCaptureMerge");
    case CudaError::CaptureUnjoined:
      return "capturing stream has unjoined work" + hint("cudaErrorStreamCaptureUnjoined");
    case CudaError::CaptureIsolation:
      return "dependency created on uncaptured work in another stream" +
          hint("cudaErrorStreamCaptureIsolation");
    case CudaError::CaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream" +
          hint("cudaErrorStreamCaptureImplicit");
    case CudaError::CapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream" +
          hint("cudaErrorCapturedEvent");
    case CudaError::Assert:
      return "device-side assert triggered" + hint("cudaErrorAssert");
    case CudaError::LaunchFailure:
      return "unspecified launch failure" + hint("cudaErrorLaunchFailure");
    case CudaError::NotReady:
      return "device not ready" + hint("cudaErrorNotReady");
  }
  return "unknown error";
}

} // namespace

void raise_cuda_error(CudaError error, const std::string& details) {
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, static_cast<int32_t>(error),
      "CUDA error: " + text_of(error) +
          "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
          "stacktrace below might be incorrect.\nFor debugging consider passing "
          "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
          "assertions.\n" +
          (details.empty() ? details : details + '\n'));
}

} // namespace anyrig::virtual_gpu
