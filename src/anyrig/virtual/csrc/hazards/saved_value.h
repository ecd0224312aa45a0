// The tensors that autograd saves for the backward pass, and a report when the backward pass uses
// one that was overwritten without autograd noticing.
//
//   forward    SavedVariable ─▶ Engine::get_default_saved_variable_hooks ─▶ SavedValue: the tensor,
//              its version, its memory (write_watch.h) and the line
//   backward   SavedVariable::unpack ─▶ SavedValue: same version? written to? ─▶ the report
//
// PyTorch asks its engine for the hooks of a saved tensor. While values are watched, that engine is
// ours: it hands out SavedValues and leaves everything else to PyTorch's engine. So the values of
// every thread are watched, and torch.func, which refuses Python hooks, keeps working. The
// program's own hooks take precedence.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/Tensor.h>

namespace anyrig::virtual_gpu {

// Watches the values that are saved from now on. `report` is borrowed and called with the GIL:
//   report(tensor, line that saved, line that wrote, operator that wrote, node that uses)
// where a line is (file, number), or None if it is unknown. The operator is None if the tensor has
// other memory now (`tensor.data = other`). An exception of `report` ends the backward.
void watch_saved_values(PyObject* report);
// `tensor` was given other memory (`tensor.data = other`). Call with the GIL.
void note_assigned(const at::Tensor& tensor);
// Saves as before. Values that are watched already are still checked for their version.
void unwatch_saved_values();

} // namespace anyrig::virtual_gpu
