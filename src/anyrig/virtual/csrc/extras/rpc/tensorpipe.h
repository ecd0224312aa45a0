// Tensors of virtual devices in torch.distributed.rpc, whose transport is TensorPipe.
#pragma once

namespace anyrig::virtual_gpu {

// Registers virtual devices with TensorPipe. Call once a process, before the first init_rpc.
void install_tensorpipe();

} // namespace anyrig::virtual_gpu
