"""Trains with DDP, FSDP2 and tensor parallelism, in which all ranks do the same: four steps each.

Arguments: which of them.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 1024


def make_layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def replicas(model: nn.Sequential) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def shards(model: nn.Sequential) -> nn.Module:
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def tensors(model: nn.Sequential) -> nn.Module:
    """Divide each layer over the GPUs of a node, and shard that over the nodes."""
    gpus = int(os.environ["LOCAL_WORLD_SIZE"])
    shape = (dist.get_world_size() // gpus, gpus)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("nodes", "gpus"))
    for layer in model:
        parallelize_module(layer, mesh["gpus"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["nodes"])
    return fully_shard(model, mesh=mesh["nodes"])


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    names: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(names, "alike")
    assert names == ["alike"] * int(os.environ["WORLD_SIZE"])
    for way in sys.argv[1:]:
        model = {"replicas": replicas, "shards": shards, "tensors": tensors}[way](
            nn.Sequential(*(make_layer() for _ in range(4))).cuda()
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(4):
            model(torch.randn(256, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        del model, optimizer
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
