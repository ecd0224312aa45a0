// The bytes of virtual tensors as host tensors that gloo can carry and the CPU can add.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {

int64_t bytes_of(const at::Tensor& tensor);
std::vector<int64_t> bytes_of(const std::vector<at::Tensor>& tensors);
double sum_of(const std::vector<int64_t>& bytes);

// NCCL moves lists of equal tensors through one buffer, which takes memory as long as it is kept.
// Nothing is added if they are not equal.
void add_buffer(std::vector<at::Tensor>& kept, const std::vector<at::Tensor>& list);

// All numbers of `tensor`, which lie without gaps, in one row; in ShapeOnly those that are known
// (known_values.h), else undefined. The row keeps the bytes, whatever the program does to `tensor`
// meanwhile. Truth values become bytes, and complex numbers pairs, as NCCL has neither.
at::Tensor host_row(const at::Tensor& tensor);
std::vector<at::Tensor> host_rows(const std::vector<at::Tensor>& tensors);

// The same for a tensor that is overwritten as a whole. In ShapeOnly its values count as known from
// here on; where none arrive, they have to be forgotten.
at::Tensor row_to_fill(const at::Tensor& tensor);
std::vector<at::Tensor> rows_to_fill(const std::vector<at::Tensor>& tensors);

// `row` in `count` parts as equal as can be; the first ones are longer.
std::vector<at::Tensor> split_row(const at::Tensor& row, int count);

} // namespace anyrig::virtual_gpu
