"""A program that exits with pending works, without destroying its groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

KEPT: list[Any] = []


def case_exit_with_works_and_groups(world: Any) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[world.rank])
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    tensor = torch.ones(1000, device="cuda")
    KEPT.append((model, tensor, dist.new_group()))
    KEPT.append(dist.all_reduce(tensor, async_op=True))
    dist.all_reduce(tensor, async_op=True, group=KEPT[0][2]).get_future().then(
        lambda done: KEPT.append(done.value())
    )
    # A message that is received just before the exit.
    if world.rank == 0:
        dist.isend(tensor, 1)
    elif world.rank == 1:
        dist.recv(torch.empty(1000, device="cuda"), 0)
