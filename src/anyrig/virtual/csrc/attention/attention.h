// What the fused attention operators share.
//
// Each operator allocates on the device what its CUDA kernel allocates, outputs and scratch memory
// in the same order, so that Compute and ShapeOnly count the same memory. Then, in Compute, the
// operator writes the results of attention_math.h to the outputs.
#pragma once

#include "attention/attention_math.h"
#include "operators/kernels.h"
#include "operators/optional_tensor.h"
#include "time/work.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <initializer_list>
#include <tuple>
#include <utility>

namespace anyrig::virtual_gpu {

// Memory that an operator holds until it returns, and that nothing reads.
using Scratch = std::vector<at::Tensor>;

inline int64_t round_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// The results of scaled_dot_product_attention's flash and cuDNN operators: output, logsumexp, the
// starts of the query and key sequences, the longest query and key sequence, the generator's state
// in two tensors, and the debug mask.
using ProductOutputs = std::tuple<
    at::Tensor,
    at::Tensor,
    at::Tensor,
    at::Tensor,
    c10::SymInt,
    c10::SymInt,
    at::Tensor,
    at::Tensor,
    at::Tensor>;

// Raises RuntimeError if the tensors are on several devices, as the generated wrapper of operator
// `name` does.
void check_same_device(
    const char* name,
    std::initializer_list<std::pair<const char*, OptionalTensor>> arguments);

// Returns `scale`, or 1 / sqrt(head size) if it is not given.
double attention_scale(const at::Tensor& query, std::optional<double> scale);

// The size of an attention call. Sequences of unequal lengths count with their mean length.
struct AttentionWork {
  AttentionShape shape;
  double head_size; // of queries and keys
  double value_head_size;
  double share; // of the scores that the mask leaves; kernels skip the other blocks
};

// Advance the virtual clock by the time of a kernel that reads and writes `tensors`.
void charge_forward(
    const at::Tensor& query,
    const AttentionWork& work,
    std::initializer_list<at::Tensor> tensors);
void charge_backward(
    const at::Tensor& query,
    const AttentionWork& work,
    std::initializer_list<at::Tensor> tensors);

// Reserves `per_thread` random numbers for each thread of one launch from the default generator.
// Returns (seed, offset of the first number).
std::pair<uint64_t, uint64_t> reserve_random_numbers(const at::Tensor& query, uint64_t per_thread);

void register_flash_attention(torch::Library& library, Names& names);
void register_efficient_attention(torch::Library& library, Names& names);
void register_cudnn_attention(torch::Library& library, Names& names);
void register_multi_head_attention(torch::Library& library, Names& names);

} // namespace anyrig::virtual_gpu
