"""Gathering into one tensor of the root, which PyTorch 2.14 added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import LEGACY

gather_single: Any = getattr(dist, "gather_single", None)


def case_the_root_gets_all_rows(world: Any) -> None:
    if gather_single is None:
        return
    for group in (dist.group.WORLD, dist.new_group(backend=LEGACY)):
        row = torch.full((2, 3), float(world.rank), device="cuda")
        whole = torch.empty(world.size * 2, 3, device="cuda") if world.rank == 1 else None
        gather_single(row, whole, dst=1, group=group)
        if whole is not None:
            expected = torch.arange(world.size).repeat_interleave(2).float()
            assert torch.equal(whole.cpu(), expected[:, None].expand(-1, 3))
        stacked = torch.empty(world.size, 2, 3, device="cuda") if world.rank == 0 else None
        gather_single(row, stacked, group=group, async_op=True).wait()
        if stacked is not None:
            assert stacked[:, 0, 0].tolist() == list(range(world.size))


def case_wrong_outputs(world: Any) -> None:
    if gather_single is None:
        return
    row = torch.zeros(2, device="cuda")
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="must be equal to world_size times input tensor"):
            gather_single(row, row)
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            gather_single(row, torch.zeros(world.size * 2, 2, device="cuda")[:, 0])
    integers = torch.zeros(2, dtype=torch.int16, device="cuda")
    with pytest.raises((TypeError, RuntimeError), match="data type"):
        gather_single(integers, integers.repeat(world.size) if world.rank == 0 else None)
