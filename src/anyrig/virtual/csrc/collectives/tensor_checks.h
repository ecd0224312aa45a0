// ProcessGroupNCCL's checks of its arguments, with its error classes and messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// Checks that `tensor` is a dense and contiguous CUDA tensor. Raises ValueError.
void check_tensor(const at::Tensor& tensor);
// As above, for a send or receive: a non-contiguous tensor only causes a warning. NCCL then moves
// its numel() elements from the start of its memory, gaps included. Raises ValueError if these
// exceed the tensor's storage.
void check_message(const at::Tensor& tensor);
// Returns the only tensor of `tensors`. Raises RuntimeError if there are several.
const at::Tensor& check_single(const std::vector<at::Tensor>& tensors);
// Checks that `tensors` is not empty and that all are on one device with one dtype. Returns their
// total number of elements. Raises ValueError, or TypeError for the dtype.
int64_t check_same_device(const std::vector<at::Tensor>& tensors);

// Checks that `lists` is one list with a tensor for each of the `size` ranks. `kind` is "input" or
// "output". Raises ValueError.
void check_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size);
// On the root, checks `lists` as above and returns its tensors. On the other ranks, checks that
// `lists` is empty and returns an empty list.
const std::vector<at::Tensor>& check_root_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size,
    bool is_root);
// Checks that `root` is a rank of the group. Raises ValueError.
void check_root(const char* function, int64_t root, int size);
// Raises ValueError with the text "ProcessGroupNCCL::<function>: <reason>".
[[noreturn]] void raise_value_error(const char* function, const std::string& reason);

// Whether NCCL moves `dtype`.
bool is_moved(c10::ScalarType dtype);
// Raises TypeError for a dtype that NCCL does not move.
void check_dtype(c10::ScalarType dtype);

} // namespace anyrig::virtual_gpu
