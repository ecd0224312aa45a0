#ifdef USE_C10D_GLOO

#include "collectives/host_bytes.h"

#include "device/device.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

namespace anyrig::virtual_gpu {

namespace {

// Returns a row over the memory of the CPU tensor `host`.
at::Tensor make_row(const at::Tensor& host) {
  auto dtype = host.scalar_type();
  int64_t count = host.numel();
  int64_t offset = host.storage_offset();
  if (dtype == at::kBool) {
    dtype = at::kByte;
  } else if (c10::isComplexType(dtype)) {
    dtype = c10::toRealValueType(dtype);
    count *= 2;
    offset *= 2;
  }
  auto row = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(host.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  row.unsafeGetTensorImpl()->set_storage_offset(offset);
  row.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return row;
}

template <class Row>
std::vector<at::Tensor> map(const std::vector<at::Tensor>& tensors, Row make_one) {
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    rows.push_back(make_one(tensor));
  }
  return rows;
}

} // namespace

at::Tensor host_row(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  if (!shape_only()) {
    give_own_memory(tensor);
    return make_row(twin_of(tensor));
  }
  const auto values = known_values(tensor);
  return values.defined() ? make_row(values) : values;
}

std::vector<at::Tensor> host_rows(const std::vector<at::Tensor>& tensors) {
  return map(tensors, host_row);
}

at::Tensor row_to_fill(const at::Tensor& tensor) {
  if (!shape_only() || !tensor.defined()) {
    return host_row(tensor);
  }
  give_own_memory(tensor);
  const auto values = values_to_write(tensor);
  return values.defined() ? make_row(values) : values;
}

std::vector<at::Tensor> rows_to_fill(const std::vector<at::Tensor>& tensors) {
  return map(tensors, row_to_fill);
}

std::vector<at::Tensor> split_row(const at::Tensor& row, int count) {
  std::vector<at::Tensor> parts(count);
  if (!row.defined()) {
    return parts;
  }
  int64_t start = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t length = row.numel() / count + (i < row.numel() % count ? 1 : 0);
    parts[i] = row.narrow(0, start, length);
    start += length;
  }
  return parts;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.numel() * tensor.element_size());
}

std::vector<int64_t> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> bytes;
  bytes.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    bytes.push_back(bytes_of(tensor));
  }
  return bytes;
}

double sum_of(const std::vector<int64_t>& bytes) {
  double sum = 0;
  for (const int64_t part : bytes) {
    sum += static_cast<double>(part);
  }
  return sum;
}

void add_flat_buffer(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& list) {
  int64_t total_numel = 0;
  for (const auto& tensor : list) {
    if (tensor.sizes() != list[0].sizes()) {
      return;
    }
    total_numel += tensor.numel();
  }
  tensors.push_back(at::empty({total_numel}, list[0].options()));
}

} // namespace anyrig::virtual_gpu

#endif // USE_C10D_GLOO
