// Kernels that create tensors, view them, set their storage, or read single values.

#include "operators/kernels.h"

#include "device/host_waits.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "memory/known_values.h"
#include "time/capture.h"
#include "time/clock.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace anyrig::virtual_gpu {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

void check_not_pinned(std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// Fills new memory if the program asked for deterministic uninitialized memory.
at::Tensor fill_if_deterministic(at::Tensor made) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(
          context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(made);
  }
  return made;
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  check_not_pinned(pin_memory);
  CurrentDevice guard(resolve_device(device).index());
  return fill_if_deterministic(
      at::detail::empty_generic(
          size, device_allocator(), kKeys, c10::dtype_or_default(dtype), memory_format));
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  check_not_pinned(pin_memory);
  CurrentDevice guard(resolve_device(device).index());
  return fill_if_deterministic(
      at::detail::empty_strided_generic(
          size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// Returns a tensor of zeros without memory, which autograd uses for zero gradients.
at::Tensor efficient_zero_tensor(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin_memory*/) {
  auto allocator = at::native::ZeroTensorAllocator(resolve_device(device));
  const auto keys = kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(
      size, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

at::Tensor& set_storage(
    at::Tensor& result,
    at::Storage storage,
    int64_t offset,
    at::IntArrayRef size,
    at::IntArrayRef stride) {
  TORCH_CHECK(
      storage.device() == result.device(), "Attempted to set the storage of a tensor on device \"",
      result.device(), "\" to a storage on different device \"", storage.device(),
      "\".  This is no longer allowed; the devices must match.");
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  impl->set_storage_offset(offset);
  const size_t needed = at::detail::computeStorageNbytes(
      impl->sizes(), impl->strides(), impl->dtype().itemsize(), offset);
  if (impl->numel() > 0 && needed > impl->unsafe_storage().nbytes()) {
    resize_storage(impl->unsafe_storage(), needed);
  }
  return result;
}

at::Tensor& set_source_storage_offset(
    at::Tensor& result,
    at::Storage source,
    int64_t offset,
    at::IntArrayRef size,
    at::IntArrayRef stride) {
  at::native::checkSetStorage(
      result, source, offset, size, stride, /*check_offset_in_bounds=*/false);
  return set_storage(result, std::move(source), offset, size, stride);
}

at::Tensor& set_source_storage(at::Tensor& result, at::Storage source) {
  const auto numbers = static_cast<int64_t>(source.nbytes() / result.dtype().itemsize());
  return set_storage(result, std::move(source), 0, {numbers}, {});
}

at::Tensor& set_source_tensor(at::Tensor& result, const at::Tensor& source) {
  if (result.is_same(source)) {
    return result;
  }
  return set_storage(
      result, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& result) {
  return set_source_tensor(result, at::empty({0}, result.options()));
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().is_alias_of(other.storage()) &&
      self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
      self.strides() == other.strides();
}

// `.item()`, `bool(tensor)`, printing: the host waits for the device.
at::Scalar local_scalar_dense(const at::Tensor& self) {
  check_not_forked();
  const auto stream = current_stream(self.device().index());
  check_not_captured(stream);
  note_host_wait(stream);
  const RunningOperator running("aten::_local_scalar_dense");
  Clock::get().copy(
      self.device(), at::kCPU, static_cast<double>(self.element_size()), {.host_waits = true});
  if (!shape_only()) {
    return at::_local_scalar_dense(twin_of(self));
  }
  if (const auto values = known_values(self); values.defined()) {
    return at::_local_scalar_dense(values);
  }
  require_assumed_values(
      "aten::_local_scalar_dense (.item(), bool(), int() or float())", why_unknown(self));
  switch (self.scalar_type()) {
    case at::kBool:
      return true;
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return 1.0;
    default:
      return c10::isComplexType(self.scalar_type()) ? at::Scalar(c10::complex<double>(1.0))
                                                    : at::Scalar(int64_t{1});
  }
}

// The backward passes of views launch work. PyTorch also makes slices, transposed and expanded
// tensors with these two operators.
at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  Clock::get().note_node();
  return at::native::view(self, sizes);
}

at::Tensor as_strided(
    const at::Tensor& self,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<int64_t> offset) {
  Clock::get().note_node();
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

void record_stream_of(at::Tensor& self, c10::Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

// The CPU kernel for this loss runs on twins; cuDNN's kernel is not modelled.
bool no_cudnn_ctc_loss(
    const at::Tensor& /*log_probs*/,
    const at::Tensor& /*targets*/,
    at::IntArrayRef /*input_lengths*/,
    at::IntArrayRef /*target_lengths*/,
    int64_t /*blank*/) {
  return false;
}

bool no_cudnn_ctc_loss_tensor(
    const at::Tensor& /*log_probs*/,
    const at::Tensor& /*targets*/,
    const at::Tensor& /*input_lengths*/,
    const at::Tensor& /*target_lengths*/,
    int64_t /*blank*/) {
  return false;
}

} // namespace

void register_tensor_kernels(torch::Library& library, Names& names) {
  const auto add = [&](const char* name, auto kernel) {
    register_kernel(library, names, name, kernel);
  };
  add("empty.memory_format", empty);
  add("empty_strided", empty_strided);
  add("_efficientzerotensor", efficient_zero_tensor);
  // PyTorch's view kernels use geometry only and work on every device.
  add("view", view);
  add("as_strided", as_strided);
  add("unfold", at::native::unfold);
  add("_reshape_alias", at::native::_reshape_alias);
  add("view_as_real", at::native::view_as_real);
  add("view_as_complex", at::native::view_as_complex);
  add("set_.source_Storage_storage_offset", set_source_storage_offset);
  add("set_.source_Storage", set_source_storage);
  add("set_.source_Tensor", set_source_tensor);
  add("set_", set_empty);
  add("is_set_to", is_set_to);
  add("_local_scalar_dense", local_scalar_dense);
  add("record_stream", record_stream_of);
  add("_use_cudnn_ctc_loss", no_cudnn_ctc_loss);
  add("_use_cudnn_ctc_loss.Tensor", no_cudnn_ctc_loss_tensor);
  add("_use_miopen_ctc_loss", no_cudnn_ctc_loss);
  add("_use_miopen_ctc_loss.Tensor", no_cudnn_ctc_loss_tensor);
}

Names register_kernels(torch::Library& library) {
  Names names;
  register_tensor_kernels(library, names);
  register_copy_kernels(library, names);
  register_lazy_clones(library, names);
  register_attention_kernels(library, names);
  register_recurrent_kernels(library, names);
  register_recurrent_layers(library, names);
  register_random_kernels(library, names);
  register_random_launch_kernels(library, names);
  register_nested_kernels(library, names);
  return names;
}

bool has_arguments(const char* name, size_t count) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""});
  return op.has_value() && op->schema().arguments().size() == count;
}

} // namespace anyrig::virtual_gpu
