"""One of two ranks calls a spread model, and waits for the other, which does something else."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import anyrig
from anyrig.errors import RankMismatchError, RankWaitError
from anyrig.processes.group.board import board_of
from anyrig.processes.group.membership import current_group, join_group


def preview_alone(limit_seconds: float, at_a_barrier: bool) -> None:
    """Preview on rank 0 alone; rank 0 prints what each rank has raised."""
    join_group(timeout_seconds=limit_seconds)
    board = board_of(current_group())
    model = anyrig.spread(nn.Linear(2, 2), loss=nn.MSELoss())
    raised = ""
    try:
        if dist.get_rank() == 0:
            model(torch.ones(1, 2), target=torch.ones(1, 2))
        elif at_a_barrier:
            anyrig.barrier(timeout_seconds=60)
        else:
            board.reach("a download")
    except (RankMismatchError, RankWaitError) as error:
        raised = str(error)
    board._store.set(f"{dist.get_rank()} ended", raised)
    board._store.wait(["0 ended", "1 ended"], timedelta(seconds=60))
    if dist.get_rank() == 0:
        found = [board._store.get(f"{rank} ended").decode() for rank in range(2)]
        sys.stdout.write(json.dumps(found))
