"""Tensors that are freed while a collective uses them, in both modes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def full_from_cpu(shape: tuple[int, ...], value: float) -> Tensor:
    """Return a tensor copied from the CPU, so that shape-only mode knows its values."""
    return torch.full(shape, value).to("cuda")


def case_tensors_freed_while_a_collective_uses_them(world: Any) -> None:
    # Rank 0 frees its memory and allocates as much again before the other ranks call.
    tensors = [full_from_cpu((4096,), world.rank + 1.0) for _ in range(4)]
    received = full_from_cpu((4096,), 0.0)
    works, others = [], []
    if world.rank > 0:
        world.store.wait(["freed"])
    works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if world.rank == 0:
        works.append(dist.irecv(received, 1))
        for tensor in (*tensors, received):
            tensor.untyped_storage().resize_(0)
        others = [full_from_cpu((4096,), 7.0) for _ in range(20)]
        world.store.set("freed", "")
    elif world.rank == 1:
        works.append(dist.isend(full_from_cpu((4096,), 5.0), 0))
    for work in works:
        work.wait()
    if world.rank == 0:
        assert [other.unique().tolist() for other in others] == [[7.0]] * 20
    else:
        total = sum(range(1, world.size + 1))
        assert [tensor.unique().tolist() for tensor in tensors] == [[total]] * 4
