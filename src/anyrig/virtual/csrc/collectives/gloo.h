// What PyTorch's build for the CPU lacks of gloo's collectives on CUDA tensors.
//
// ProcessGroupGloo stages the tensors of a card in pinned memory itself, in every build, but for
// all_reduce, whose part for CUDA is registered by libtorch_cuda. Without it all_reduce, and
// reduce_scatter, which is made of it, work on a null pointer. So these are staged here:
//
//   caller's stream   ──┐                                     ┌── goes on
//   a stream beside it  └─ copy to the host ─┐ ┌─ copy back ──┘
//   the host                                 └─┘ gloo, on the host's tensors
//
// A send or receive is refused: gloo hands the address to the system, which cannot read a card.
#pragma once

namespace anyrig::virtual_gpu {

void install_gloo_collectives();

} // namespace anyrig::virtual_gpu
