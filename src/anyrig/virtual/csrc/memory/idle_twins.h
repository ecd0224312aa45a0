// Twins of freed memory (twin.h), kept with their shadow storages for new memory: a program frees
// and makes tensors at the same rate, and the two objects cost more to make than many small kernels.
//
//   memory ── freed ──> its spare twin ── keep_idle_twin ──> at most 256 of them, over no bytes
//   memory <── its first twin ────────── take_idle_twin ──────────────┘
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace anyrig::virtual_gpu {

// Keeps a twin that has the only reference to its shadow, whose bytes are let go.
void keep_idle_twin(c10::intrusive_ptr<c10::TensorImpl> twin);

// Returns the twin that was kept last, over no bytes and of any dtype and geometry; null without
// one.
c10::intrusive_ptr<c10::TensorImpl> take_idle_twin();

} // namespace anyrig::virtual_gpu
