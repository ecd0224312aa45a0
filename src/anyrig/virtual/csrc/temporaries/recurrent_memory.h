// The memory of cuDNN's recurrent operator in addition to its operands and results.
//
// Only cuDNN knows the sizes (cudnnGetRNNTempSpaceSizes). Those here follow what an H100 allocated
// with PyTorch 2.11 and cuDNN 9.19, in 43 configurations: the reserve is equal in all. The workspace of
// LSTMs is within 5 %, of GRUs within 14 %; of small plain RNNs it is up to 44 % too small.
#pragma once

#include "time/records/recurrent_record.h"

#include <cstdint>

namespace anyrig::virtual_gpu {

// What a forward pass in training leaves for the backward pass.
int64_t recurrent_reserve_bytes(const RecurrentLayers& all);
// What a pass needs while it runs.
int64_t recurrent_workspace_bytes(const RecurrentLayers& all);

} // namespace anyrig::virtual_gpu
