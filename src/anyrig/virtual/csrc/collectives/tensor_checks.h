// What ProcessGroupNCCL refuses of its arguments, with its classes of errors and its words.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace anyrig::virtual_gpu {

// A dense tensor of a device, without gaps. Raises ValueError.
void check_tensor(const at::Tensor& tensor);
// As above; a message may have gaps, and what is between them travels in place of what is not.
void check_message(const at::Tensor& tensor);
// The one tensor of a list that can hold one for each device of the process.
const at::Tensor& check_single(const std::vector<at::Tensor>& tensors);
// Tensors of one type and one device. Returns the sum of their sizes.
int64_t check_same_device(const std::vector<at::Tensor>& tensors);

// One list with a tensor for each of the `size` ranks; `kind` is "input" or "output". ValueError.
void check_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size);
// As above for the root, which alone has one: returns its tensors, none on the other ranks.
const std::vector<at::Tensor>& check_root_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size,
    bool is_root);
// A rank of the group. Raises ValueError.
void check_root(const char* function, int64_t root, int size);
[[noreturn]] void refuse(const char* function, const std::string& reason);

// Raises TypeError for a type that NCCL does not move.
void check_dtype(c10::ScalarType dtype);

} // namespace anyrig::virtual_gpu
