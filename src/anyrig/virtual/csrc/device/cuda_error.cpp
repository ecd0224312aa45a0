#include "device/cuda_error.h"

#include <c10/util/Exception.h>

#include <string>

namespace anyrig::virtual_gpu {
namespace {

// c10/cuda/CUDAMiscFunctions.cpp: where to look, but for a wrong device, which it explains.
std::string advice(const std::string& name) {
  return "\nSearch for `" + name +
      "' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
      "information.";
}

std::string text_of(CudaError error) {
  switch (error) {
    case CudaError::Initialization:
      return "initialization error" + advice("cudaErrorInitializationError");
    case CudaError::InvalidDevice:
      return "invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?";
    case CudaError::InvalidHandle:
      return "invalid resource handle" + advice("cudaErrorInvalidResourceHandle");
    case CudaError::IllegalState:
      return "the operation cannot be performed in the present state" +
          advice("cudaErrorIllegalState");
    case CudaError::CaptureUnsupported:
      return "operation not permitted when stream is capturing" +
          advice("cudaErrorStreamCaptureUnsupported");
    case CudaError::CaptureInvalidated:
      return "operation failed due to a previous error during capture" +
          advice("cudaErrorStreamCaptureInvalidated");
    case CudaError::CaptureMerge:
      return "operation would result in a merge of separate capture sequences" +
          advice("cudaErrorStreamCaptureMerge");
    case CudaError::CaptureUnjoined:
      return "capturing stream has unjoined work" + advice("cudaErrorStreamCaptureUnjoined");
    case CudaError::CaptureIsolation:
      return "dependency created on uncaptured work in another stream" +
          advice("cudaErrorStreamCaptureIsolation");
    case CudaError::CaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream" +
          advice("cudaErrorStreamCaptureImplicit");
    case CudaError::CapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream" +
          advice("cudaErrorCapturedEvent");
    case CudaError::Assert:
      return "device-side assert triggered" + advice("cudaErrorAssert");
    case CudaError::LaunchFailure:
      return "unspecified launch failure" + advice("cudaErrorLaunchFailure");
    case CudaError::NotReady:
      return "device not ready" + advice("cudaErrorNotReady");
  }
  return "unknown error";
}

} // namespace

void raise_cuda_error(CudaError error, const std::string& what) {
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      static_cast<int32_t>(error),
      "CUDA error: " + text_of(error) +
          "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
          "stacktrace below might be incorrect.\nFor debugging consider passing "
          "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
          "assertions.\n" +
          (what.empty() ? what : what + '\n'));
}

} // namespace anyrig::virtual_gpu
