// Tensors of virtual devices in torch.distributed.rpc, whose agent is TensorPipe.
#pragma once

namespace anyrig::virtual_gpu {

// Once a process, before the first init_rpc.
void install_tensorpipe();

} // namespace anyrig::virtual_gpu
