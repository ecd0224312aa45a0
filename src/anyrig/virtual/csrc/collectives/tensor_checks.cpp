#ifdef USE_C10D_GLOO

#include "collectives/tensor_checks.h"

#include <c10/util/Exception.h>

namespace anyrig::virtual_gpu {
namespace {

void check_dense(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.is_sparse()) {
    C10_THROW_ERROR(ValueError, "Tensors must be CUDA and dense");
  }
}

} // namespace

void check_tensor(const at::Tensor& tensor) {
  check_dense(tensor);
  if (!tensor.is_contiguous(tensor.suggest_memory_format())) {
    C10_THROW_ERROR(ValueError, "Tensors must be contiguous");
  }
}

void check_message(const at::Tensor& tensor) {
  check_dense(tensor);
  if (!tensor.is_contiguous(tensor.suggest_memory_format())) {
    TORCH_WARN_ONCE(
        "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee "
        "that source and destination tensors have the same contiguity format.");
    const auto end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size();
    TORCH_CHECK_VALUE(
        end <= tensor.storage().nbytes(),
        "this tensor has more elements than its storage, and NCCL would access memory beyond it; "
        "call contiguous() first");
  }
}

const at::Tensor& check_single(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(
      tensors.size() == 1,
      "Expecting one tensor only but got multiple. You are probably using multiple devices under "
      "one thread. The support for such usage has been deprecated.");
  return tensors[0];
}

int64_t check_same_device(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    C10_THROW_ERROR(ValueError, "Tensor list must be nonempty");
  }
  const auto& first = tensors.front();
  int64_t total_numel = 0;
  for (const auto& tensor : tensors) {
    check_dense(tensor);
    if (tensor.scalar_type() != first.scalar_type()) {
      C10_THROW_ERROR(TypeError, "Tensors must have identical type");
    }
    if (!tensor.is_non_overlapping_and_dense()) {
      C10_THROW_ERROR(ValueError, "Tensors must be non-overlapping and dense");
    }
    TORCH_CHECK_WITH(
        ValueError, tensor.get_device() == first.get_device(),
        "Expected list of tensors on the same device");
    total_numel += tensor.numel();
  }
  return total_numel;
}

bool is_moved(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
    case at::kByte:
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBool:
    case at::kBFloat16:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
      return true;
    default:
      return false;
  }
}

void check_dtype(c10::ScalarType dtype) {
  if (!is_moved(dtype)) {
    C10_THROW_ERROR(
        TypeError,
        c10::str("Input tensor data type is not supported for NCCL process group: ", dtype));
  }
}

void raise_value_error(const char* function, const std::string& reason) {
  C10_THROW_ERROR(ValueError, std::string("ProcessGroupNCCL::") + function + ": " + reason);
}

void check_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size) {
  if (lists.size() != 1) {
    raise_value_error(
        function,
        c10::str(
            "requires a single-element ", kind, " list containing a list with ", size,
            " tensors."));
  }
  if (lists[0].size() != static_cast<size_t>(size)) {
    const std::string capital = kind[0] == 'o' ? "Output" : "Input";
    raise_value_error(
        function,
        c10::str(
            "Incorrect ", kind, " list size ", lists[0].size(), ". ", capital,
            " list size should be ", size, ", same as size of the process group."));
  }
}

const std::vector<at::Tensor>& check_root_list(
    const char* function,
    const char* kind,
    const std::vector<std::vector<at::Tensor>>& lists,
    int size,
    bool is_root) {
  static const std::vector<at::Tensor> none;
  if (is_root) {
    check_list(function, kind, lists, size);
    check_same_device(lists[0]);
    return lists[0];
  }
  if (!lists.empty()) {
    raise_value_error(function, c10::str("requires empty ", kind, " on non-root"));
  }
  return none;
}

void check_root(const char* function, int64_t root, int size) {
  if (root < 0 || root >= size) {
    raise_value_error(function, c10::str("invalid root rank: ", root));
  }
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
