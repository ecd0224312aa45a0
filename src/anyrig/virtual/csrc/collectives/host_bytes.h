// The bytes of virtual tensors, as CPU tensors that gloo can send and the CPU can add.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace anyrig::virtual_gpu {

int64_t bytes_of(const at::Tensor& tensor);
std::vector<int64_t> bytes_of(const std::vector<at::Tensor>& tensors);
double sum_of(const std::vector<int64_t>& bytes);

// NCCL moves a list of tensors of one size through one flat buffer, which occupies GPU memory while
// it exists. Adds such a buffer for `list` to `tensors`, or nothing if the sizes differ.
void add_flat_buffer(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& list);

// Returns all elements of `tensor`, which must lie in memory without gaps, as a one-dimensional CPU
// tensor over the same memory. The row keeps that memory alive. Booleans become bytes, and complex
// numbers pairs of real numbers, since NCCL has neither type. In ShapeOnly, returns the known
// values (known_values.h), or an undefined tensor.
at::Tensor host_row(const at::Tensor& tensor);
std::vector<at::Tensor> host_rows(const std::vector<at::Tensor>& tensors);

// As `host_row`, for a tensor that is overwritten completely. In ShapeOnly its values count as
// known from then on; the caller must forget them if no values arrive.
at::Tensor row_to_fill(const at::Tensor& tensor);
std::vector<at::Tensor> rows_to_fill(const std::vector<at::Tensor>& tensors);

// Splits `row` into `count` parts whose lengths differ by at most one, the longest first. The parts
// of an undefined row are undefined.
std::vector<at::Tensor> split_row(const at::Tensor& row, int count);

} // namespace anyrig::virtual_gpu
