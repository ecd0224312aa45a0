#include "operators/nested_shapes.h"

#include "device/device.h"
#include "device/host_waits.h"
#include "dispatch/shape_only.h"
#include "memory/known_values.h"
#include "time/capture.h"
#include "time/clock.h"
#include "time/records/operator_work.h"
#include "time/streams.h"
#include "time/work.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

namespace anyrig::virtual_gpu {
namespace {

// Returns a CPU tensor like the mask. PyTorch's code reads only the mask, and computes the sizes on
// the host if its values are known. The host waits for the device, as on CUDA, for the sequence
// lengths.
at::Tensor mask_on_host(const at::Tensor& mask, const char* name) {
  const auto stream = current_stream(mask.device().index());
  check_not_captured(stream);
  note_host_wait(stream);
  const auto bytes = static_cast<double>(sizeof(int64_t)) * static_cast<double>(mask.size(0));
  Clock::get().copy(mask.device(), at::kCPU, bytes, {.host_waits = true});
  if (const auto values = known_values(mask); values.defined()) {
    return values;
  }
  require_assumed_values(name, why_unknown(mask));
  return at::ones(mask.sizes(), mask.options().device(at::kCPU));
}

at::Tensor nested_from_mask(const at::Tensor& padded, const at::Tensor& mask, bool mask_check) {
  const auto known = mask_on_host(mask, "aten::_nested_tensor_from_mask");
  return at::native::NestedTensor_nested_tensor_from_mask(padded, known, mask_check);
}

bool is_left_aligned(const at::Tensor& padded, const at::Tensor& mask) {
  const auto known = mask_on_host(mask, "aten::_nested_tensor_from_mask_left_aligned");
  return at::native::NestedTensor_nested_tensor_from_mask_left_aligned(padded, known);
}

// Charges a kernel that mainly reads and writes memory, and returns `written`.
at::Tensor charge_traffic(std::initializer_list<at::Tensor> read, at::Tensor written) {
  double bytes_read = 0;
  for (const auto& tensor : read) {
    bytes_read += touched_bytes(tensor);
  }
  const Work work = memory_work(bytes_read, touched_bytes(written));
  if (Clock::get().charges() && work.bytes() > 0) {
    Clock::get().run(current_stream(written.device().index()), work);
  }
  return written;
}

using Projections = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Queries, keys and values share one allocation.
Projections split_projection(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads) {
  const int64_t numbers = bias.size(0) / 3;
  TORCH_CHECK(
      qkv.dim() == 3 && qkv.size(2) == bias.size(0) && numbers % heads == 0,
      "_transform_bias_rescale_qkv: ", qkv.sizes(), " and a bias of ", bias.sizes(),
      " do not make queries, keys and values of ", heads, " heads");
  const auto all = charge_traffic(
      {qkv, bias}, at::empty({3, qkv.size(0), heads, qkv.size(1), numbers / heads}, qkv.options()));
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

Projections split_nested_projection(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads) {
  const auto* impl = at::native::get_nested_tensor_impl(qkv);
  const auto& sizes = impl->get_nested_sizes();
  const auto longest = sizes.select(1, 0).max().item<int64_t>();
  const auto numbers = bias.size(0) / 3;
  const auto all = charge_traffic(
      {impl->get_buffer(), bias},
      at::empty({3, sizes.size(0), heads, longest, numbers / heads}, bias.options()));
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

at::Tensor masked_softmax(
    const at::Tensor& scores,
    const at::Tensor& mask,
    std::optional<int64_t> /*dimension*/,
    std::optional<int64_t> mask_type) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  TORCH_CHECK(mask_type.has_value(), "Mask Type should be defined");
  TORCH_CHECK(
      *mask_type >= 0 && *mask_type <= 2,
      "Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default_mask)");
  return charge_traffic({scores, mask}, at::empty(scores.sizes(), scores.options()));
}

at::Tensor padded_to_jagged(
    const at::Tensor& padded,
    at::TensorList offsets,
    std::optional<int64_t> tokens) {
  const int64_t length = tokens.has_value() ? *tokens : offsets[0].select(0, -1).item<int64_t>();
  auto sizes = padded.sizes().slice(1).vec();
  sizes[0] = length;
  // The kernel reads only the padded rows that it writes.
  const auto result = at::empty(sizes, padded.options());
  return charge_traffic({result}, result);
}

} // namespace

void register_nested_shapes(torch::Library& library, Names& names) {
  register_kernel(library, names, "_nested_tensor_from_mask", nested_from_mask);
  register_kernel(library, names, "_nested_tensor_from_mask_left_aligned", is_left_aligned);
  register_kernel(library, names, "_transform_bias_rescale_qkv", split_projection);
  register_kernel(library, names, "_masked_softmax", masked_softmax);
  register_kernel(library, names, "_padded_dense_to_jagged_forward", padded_to_jagged);
}

void register_shapes_of_nested(torch::Library& nested, Names& nested_names) {
  register_kernel(nested, nested_names, "_transform_bias_rescale_qkv", split_nested_projection);
}

} // namespace anyrig::virtual_gpu
