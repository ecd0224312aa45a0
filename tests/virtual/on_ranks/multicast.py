"""Symmetric memory on GPUs with an NVSwitch that supports multicast."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory


def case_multicast(world: Any) -> None:
    assert _SymmetricMemory.has_multicast_support(DeviceType.CUDA, world.rank)
    name = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    tensor = symm_mem.empty(64, device=world.device)
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    assert handle.multicast_ptr != 0
    part = symm_mem.rendezvous(tensor[16:].view(6, 8), dist.group.WORLD)
    assert part.multicast_ptr - handle.multicast_ptr == part.offset - handle.offset
    total = sum(range(1, world.size + 1))
    tensor.fill_(world.rank + 1)
    assert ops.multimem_one_shot_all_reduce(tensor, "sum", name).tolist() == [total] * 64
    ops.multimem_all_reduce_(tensor, "sum", name)
    assert tensor.tolist() == [total] * 64
    part = torch.full((64 // world.size,), float(world.rank), device="cuda")
    ops.multimem_all_gather_out(part, name, tensor)
    assert tensor.view(world.size, -1)[:, 0].tolist() == list(range(world.size))
    dist.barrier(device_ids=[world.rank])
