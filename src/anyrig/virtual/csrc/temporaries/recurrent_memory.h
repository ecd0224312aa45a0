// The memory of cuDNN's recurrent operator beside its operands and results.
//
// Only cuDNN knows the sizes (cudnnGetRNNTempSpaceSizes). Those here follow what an H100 allocated
// with PyTorch 2.11 and cuDNN 9.19, in 31 configurations of LSTM, GRU and RNN: the reserve is equal in
// 30 of them. The workspace is equal for most LSTMs of one direction, and within 15 % for large GRUs;
// of small RNNs, cuDNN asks for up to twice as much.
#pragma once

#include "time/records/recurrent_record.h"

#include <cstdint>

namespace anyrig::virtual_gpu {

// What a forward pass in training leaves for the backward pass.
int64_t recurrent_reserve_bytes(const RecurrentLayers& all);
// What a pass needs while it runs.
int64_t recurrent_workspace_bytes(const RecurrentLayers& all);

} // namespace anyrig::virtual_gpu
