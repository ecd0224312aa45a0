// What some GPUs have and these have not: answered like that, since programs take a function that is
// absent for a sign of a wrong driver, and say so at length.
#include "session.h"

using namespace anyrig::nvml;

#define NVML_NOT_SUPPORTED(function)                                               \
  NVML_FUNCTION function(const void* handle) {                                     \
    return with_gpu(handle, [](const Rig&, const Gpu&) { return kNotSupported; }); \
  }

// Errors of memory.
NVML_NOT_SUPPORTED(nvmlDeviceGetEccMode)
NVML_NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)
NVML_NOT_SUPPORTED(nvmlDeviceGetDetailedEccErrors)
NVML_NOT_SUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NVML_NOT_SUPPORTED(nvmlDeviceGetRetiredPages)
NVML_NOT_SUPPORTED(nvmlDeviceGetRemappedRows)
// Windows.
NVML_NOT_SUPPORTED(nvmlDeviceGetDriverModel)
NVML_NOT_SUPPORTED(nvmlDeviceGetDriverModel_v2)
// The board.
NVML_NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
NVML_NOT_SUPPORTED(nvmlDeviceGetVbiosVersion)
NVML_NOT_SUPPORTED(nvmlDeviceGetInforomVersion)
NVML_NOT_SUPPORTED(nvmlDeviceGetInforomImageVersion)
NVML_NOT_SUPPORTED(nvmlDeviceGetBoardPartNumber)
NVML_NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)
NVML_NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NVML_NOT_SUPPORTED(nvmlDeviceGetSupportedMemoryClocks)
NVML_NOT_SUPPORTED(nvmlDeviceGetSupportedGraphicsClocks)
// Records of processes, instances of a GPU.
NVML_NOT_SUPPORTED(nvmlDeviceGetAccountingMode)
NVML_NOT_SUPPORTED(nvmlDeviceGetAccountingPids)
NVML_NOT_SUPPORTED(nvmlDeviceGetGpuInstanceId)
NVML_NOT_SUPPORTED(nvmlDeviceGetComputeInstanceId)
NVML_NOT_SUPPORTED(nvmlDeviceGetMigMode)
NVML_NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NVML_NOT_SUPPORTED(nvmlDeviceGetVirtualizationMode)

/// Samples of how busy each process kept the GPU: an idle GPU has none.
NVML_FUNCTION nvmlDeviceGetProcessUtilization(
    const void* handle,
    void*,
    unsigned* count,
    unsigned long long) {
  return with_gpu(handle, [&](const Rig&, const Gpu&) {
    const int result = give(0u, count);
    return result == kSuccess ? static_cast<int>(kNotFound) : result;
  });
}
