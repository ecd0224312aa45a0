// The plans that cuFFT would create and cache, for torch.backends.cuda.cufft_plan_cache.

#pragma once

#include "dispatch/operator_record.h"

#include <c10/core/Device.h>

#include <cstdint>

namespace anyrig::virtual_gpu {

// Record the plans that a call of _fft_r2c, _fft_c2c or _fft_c2r creates or reuses.
void note_plans_to_complex(Arguments arguments, c10::Device device);
void note_plans_of_complex(Arguments arguments, c10::Device device);
void note_plans_to_real(Arguments arguments, c10::Device device);

// Lets PyTorch's CUDA hooks count, limit and clear the plans.
void install_fft_plans();

OperatorRecords fft_records();

} // namespace anyrig::virtual_gpu
