// What the fused attention operators of a card have in common here.
//
// Each allocates on the device what the card's own kernel allocates, outputs and scratch in its
// order, so that memory is counted alike in both modes; then, unless in ShapeOnly, it writes the
// numbers of attention_math.h to the outputs.
#pragma once

#include "attention/attention_math.h"
#include "operators/kernels.h"
#include "operators/optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <initializer_list>
#include <tuple>
#include <utility>

namespace anyrig::virtual_gpu {

// Memory that is there until an operator returns, and that nobody reads.
using Scratch = std::vector<at::Tensor>;

inline int64_t round_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// What the operators of flash and of cuDNN give to scaled_dot_product_attention: the output, its
// logsumexp, where the sequences of query and key start, the longest of each, the state of the
// generator in two tensors, and the debug mask.
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

// Refuses tensors of several devices as the generated wrapper of operator `name` does.
void check_same_device(
    const char* name,
    std::initializer_list<std::pair<const char*, OptionalTensor>> arguments);

// 1 / sqrt(numbers of a head) unless given.
double attention_scale(const at::Tensor& query, std::optional<double> scale);

// The arithmetic of attention, as torch.utils.flop_counter has it.
struct AttentionWork {
  double scores;  // pairs of a query and a key, over all sequences and heads of the query
  double share;   // of them that the mask leaves: the kernels pass over the other blocks
  double head;    // numbers of a query and of a key
  double value;   // numbers of a value
};

// Move the clock by the time of a kernel, which reads and writes `tensors`.
void charge_forward(
    const at::Tensor& query, const AttentionWork& work, std::initializer_list<at::Tensor> tensors);
void charge_backward(
    const at::Tensor& query, const AttentionWork& work, std::initializer_list<at::Tensor> tensors);

// Takes the numbers of one launch from the default generator: the seed and the offset before it.
std::pair<uint64_t, uint64_t> take_dropout(const at::Tensor& query, uint64_t per_thread);

void register_flash_attention(torch::Library& library, Names& names);
void register_efficient_attention(torch::Library& library, Names& names);
void register_cudnn_attention(torch::Library& library, Names& names);
void register_multi_head_attention(torch::Library& library, Names& names);

} // namespace anyrig::virtual_gpu
