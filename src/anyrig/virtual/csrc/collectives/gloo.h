// Gloo collectives on CUDA tensors that PyTorch's CPU build does not provide.
//
// In every build ProcessGroupGloo itself stages CUDA tensors in pinned memory, except in
// all_reduce: libtorch_cuda registers its CUDA part. Without that part, all_reduce and
// reduce_scatter, which calls it, use a null pointer. So this file stages the tensors of both:
//
//   caller's stream    ──┐                                     ┌── continues
//   a separate stream    └─ copy to the host ─┐ ┌─ copy back ──┘
//   the host                                  └─┘ gloo, on CPU tensors
//
// A send or receive raises an error: gloo passes the address to the operating system, which cannot
// read GPU memory.
#pragma once

namespace anyrig::virtual_gpu {

void install_gloo_collectives();

} // namespace anyrig::virtual_gpu
