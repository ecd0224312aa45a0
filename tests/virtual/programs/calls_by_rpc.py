"""Two processes that call each other through torch.distributed.rpc with CUDA tensors."""

from __future__ import annotations

import os
import sys
import warnings

import torch
from torch import Tensor, multiprocessing
from torch.distributed import autograd, rpc

SHAPE_ONLY = "shape-only" in sys.argv


def double_transposed(x: Tensor) -> tuple[str, Tensor]:
    """Return the device of `x`, and 2 * `x` transposed, which is not contiguous."""
    return str(x.device), (2 * x).t()


def call() -> None:
    """Send tensors from both GPUs and the CPU, and compute gradients."""
    tensor = torch.arange(6.0, device="cuda:0").view(2, 3)
    before = torch.cuda.memory_allocated(0)
    device, result = rpc.rpc_sync("answers", double_transposed, (tensor,))
    print(device, result.device, result.shape, result.stride())
    print(torch.cuda.memory_allocated(0) - before)
    if SHAPE_ONLY:
        try:
            rpc.rpc_sync("answers", double_transposed, (torch.ones(2, 2),))
        except RuntimeError as error:
            print(str(error).split(".")[0])
        return
    print(result.tolist())

    device, result = rpc.rpc_sync("answers", double_transposed, (torch.ones(1, 2),))
    print(device, result.device, result.tolist())

    try:
        rpc.rpc_sync("answers", double_transposed, (torch.ones(1, 2, device="cuda:1"),))
    except RuntimeError as error:
        print(str(error).split(",")[0])

    with autograd.context() as context:
        x = torch.full((3,), 2.0, device="cuda:0", requires_grad=True)
        y = rpc.rpc_sync("answers", torch.mul, (x, x)).sum()
        autograd.backward(context, [y])
        print(autograd.get_gradients(context)[x])


def main(rank: int, port: int, store_port: int) -> None:
    """Run one of the two workers."""
    # PyTorch's own use of its process group warns.
    warnings.filterwarnings("ignore", "You are using a Backend")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    maps = {"answers": {0: 1, "cpu": "cuda:0"}} if rank == 0 else {}
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, device_maps=maps)
    name = ["calls", "answers"][rank]
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    store = torch.distributed.TCPStore("127.0.0.1", store_port)
    if rank == 0:
        call()
        store.set("called", "")
    store.wait(["called"])
    # The error in shape-only mode closes TensorPipe's connection, which a graceful shutdown needs.
    rpc.shutdown(graceful=not SHAPE_ONLY)


if __name__ == "__main__":
    free = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    port = free.port
    del free
    multiprocessing.spawn(main, (port, store.port), nprocs=2)
