// Copies: on a device, between devices, to and from the host.

#include "device/host_waits.h"
#include "dispatch/shape_only.h"
#include "dispatch/twin.h"
#include "hazards/write_watch.h"
#include "memory/known_values.h"
#include "memory/lazy_clones.h"
#include "memory/pinned_memory.h"
#include "operators/kernels.h"
#include "time/capture.h"
#include "time/clock.h"
#include "time/records/operator_work.h"
#include "time/running_operator.h"
#include "time/streams.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <string_view>

namespace anyrig::virtual_gpu {
namespace {

// Returns whether a single memcpy can do the copy: same dtype and element order at both ends.
bool is_plain(const at::Tensor& destination, const at::Tensor& source) {
  return destination.scalar_type() == source.scalar_type() &&
      destination.sizes() == source.sizes() &&
      ((destination.is_contiguous() && source.is_contiguous()) ||
       (destination.strides() == source.strides() && source.is_non_overlapping_and_dense()));
}

// Returns whether both ends have the same fastest dimension, so that threads read and write
// neighbouring elements. A source that is broadcast is read from the cache, whatever its order.
bool is_plain_order(const at::Tensor& destination, const at::Tensor& source) {
  return (destination.is_contiguous() && source.is_contiguous()) || repeats_elements(source) ||
      fastest_dimension(destination) == fastest_dimension(source);
}

// Copy.cu: has kernels that load several elements at once for one dtype, and from float32 to half
// precision.
Access access_of(const at::Tensor& destination, const at::Tensor& source) {
  if (!is_plain_order(destination, source)) {
    return Access::Strided;
  }
  const auto to = destination.scalar_type(), from = source.scalar_type();
  const bool halves = from == at::kFloat && (to == at::kHalf || to == at::kBFloat16);
  return to == from || halves ? Access::Pointwise : Access::Conversion;
}

// Returns whether a copy needs contiguous temporaries. Copies between a device and the host do
// unless they are plain. Copies between devices never do, since the GPUs of a node have peer
// access.
bool needs_temporaries(const at::Tensor& destination, const at::Tensor& source) {
  const bool on_devices = is_virtual(destination) && is_virtual(source);
  return !on_devices && !is_plain(destination, source);
}

bool is_pinned_host(const at::Tensor& tensor) {
  return tensor.has_storage() && is_pinned(tensor.storage().data());
}

// Returns what the record of the clock calls a copy. A copy between host and device says what the
// host's memory is, because that decides whether the copy can be asynchronous.
std::string_view name_of_copy(bool to_device, bool is_pinned, bool non_blocking) {
  if (is_pinned) {
    return to_device ? "aten::copy_ (Pinned -> Device)" : "aten::copy_ (Device -> Pinned)";
  }
  if (non_blocking) {
    return to_device ? "aten::copy_ (Pageable -> Device, non_blocking)"
                     : "aten::copy_ (Device -> Pageable, non_blocking)";
  }
  return to_device ? "aten::copy_ (Pageable -> Device)" : "aten::copy_ (Device -> Pageable)";
}

// Charges the time of a copy. The host waits for a copy to or from it, unless the copy is
// asynchronous and the memory pinned. CUDA copies pageable memory through a staging buffer and
// returns afterwards.
void charge(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  auto& clock = Clock::get();
  const RunningOperator running("aten::copy_");
  const double bytes = static_cast<double>(destination.nbytes());
  if (!clock.charges() || bytes == 0) {
    return;
  }
  if (source.device() == destination.device()) {
    Work work = memory_work(
        touched_bytes(source), touched_bytes(destination), access_of(destination, source));
    work.memory.elements = static_cast<double>(destination.numel());
    clock.run(current_stream(source.device().index()), work);
    return;
  }
  const bool on_devices = is_virtual(source) && is_virtual(destination);
  const bool is_pinned = !on_devices && is_pinned_host(is_virtual(source) ? destination : source);
  const bool host_waits = !on_devices && !(non_blocking && is_pinned);
  const RunningOperator to_or_from_host(
      on_devices ? RunningOperator::name()
                 : name_of_copy(is_virtual(destination), is_pinned, non_blocking));
  clock.copy(
      source.device(), destination.device(), bytes,
      {.host_waits = host_waits, .is_pageable = !on_devices && !is_pinned});
}

// Raises unless a capture can record the copy: between device and host it must be asynchronous and
// use pinned memory.
void check_capture(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const at::Tensor& host = source.is_cpu() ? source : destination;
  const at::Tensor& device_tensor = source.is_cpu() ? destination : source;
  if (!host.is_cpu() || capture_of(current_stream(device_tensor.device().index())) == kNoCapture) {
    return;
  }
  TORCH_CHECK(
      is_pinned(host.const_data_ptr()),
      "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
      "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True.");
  if (!non_blocking) {
    check_not_captured(current_stream(device_tensor.device().index()));
  }
}

// Marks the pinned memory of an asynchronous copy as in use until the stream has completed the
// copy.
void note_pinned_end(const at::Tensor& destination, const at::Tensor& source) {
  const at::Tensor& host = source.is_cpu() ? source : destination;
  const at::Tensor& device_tensor = source.is_cpu() ? destination : source;
  if (host.is_cpu() && is_pinned(host.const_data_ptr())) {
    record_pinned_use(
        host.storage().data_ptr(), host.const_data_ptr(),
        current_stream(device_tensor.device().index()));
  }
}

void move(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  check_capture(destination, source, non_blocking);
  if (is_virtual(destination)) {
    give_own_memory(destination);
  }
  if (!non_blocking && (source.is_cpu() || destination.is_cpu())) {
    const at::Tensor& device_tensor = source.is_cpu() ? destination : source;
    note_host_wait(current_stream(device_tensor.device().index()));
  }
  charge(destination, source, non_blocking);
  if (non_blocking) {
    note_pinned_end(destination, source);
  }
  if (!shape_only()) {
    at::Tensor to = twin_of(destination);
    at::Tensor from = twin_of(source);
    to.copy_(from);
    for (const auto& [owner, twin] : {std::pair(&destination, &to), std::pair(&source, &from)}) {
      if (is_virtual(*owner)) {
        keep_twin(*owner, std::move(*twin));
      }
    }
    return;
  }
  const auto values = is_virtual(source) ? known_values(source) : source;
  if (is_virtual(destination)) {
    twin_of(destination).copy_(twin_of(source)); // Meta copy, which checks the shapes
    if (!values.defined()) {
      forget_values(destination, why_unknown(source));
    } else if (auto to = values_to_write(destination); to.defined()) {
      to.copy_(values);
    }
    return;
  }
  if (values.defined()) {
    destination.copy_(values);
    return;
  }
  require_assumed_values("aten::copy_ (a copy to the host)", why_unknown(source));
  destination.fill_(1);
}

// Copies in the steps of aten/src/ATen/native/cuda/Copy.cu, to allocate the same temporaries. An
// asynchronous copy converts the dtype on the device, a synchronous one on the host.
//
// Like Copy.cu, gives `from` the flags of `source` even where making `from` has resolved them: a
// conjugated or negated source that is converted first, or is not contiguous, arrives without its
// conjugation or negation.
void copy_through_temporaries(
    const at::Tensor& destination,
    const at::Tensor& source,
    bool non_blocking) {
  const bool convert_on_device = non_blocking;
  const bool convert_at_source = is_virtual(source) == convert_on_device;
  const auto contiguous = at::MemoryFormat::Contiguous;
  at::Tensor from = source;
  at::Tensor to = destination;
  if (convert_at_source) {
    from = source.to(destination.scalar_type());
  }
  from = from.expand_as(destination).contiguous();
  if (!destination.is_contiguous() || from.scalar_type() != destination.scalar_type()) {
    to = at::empty_like(destination, destination.options().dtype(from.scalar_type()), contiguous);
  }
  from._set_conj(source.is_conj());
  from._set_neg(source.is_neg());
  to._set_conj(destination.is_conj());
  to._set_neg(destination.is_neg());
  move(to, from, non_blocking);
  if (!to.is_same(destination)) {
    destination.copy_(to, non_blocking);
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  check_not_forked();
  if (self.is_same(source)) {
    return self;
  }
  if (source._is_zerotensor()) {
    return self.zero_(); // a zero tensor of autograd, which has no memory
  }
  if (C10_UNLIKELY(watches_writes()) && is_virtual(self)) {
    const RunningOperator running("aten::copy_");
    note_write(self);
  }
  if (needs_temporaries(self, source)) {
    copy_through_temporaries(self, source, non_blocking);
  } else {
    move(self, source, non_blocking);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  at::Tensor result = destination;
  return copy_(result, source, non_blocking);
}

} // namespace

void register_copy_kernels(torch::Library& library, Names& names) {
  register_kernel(library, names, "copy_", copy_);
  register_kernel(library, names, "_copy_from", copy_from);
}

} // namespace anyrig::virtual_gpu
