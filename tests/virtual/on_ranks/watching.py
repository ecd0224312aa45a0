"""TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch's wrapper compares the calls of the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist


def case_mismatches(world: Any) -> None:
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        dist.all_reduce(torch.ones(2 + world.rank, device="cuda"))


def case_messages(world: Any) -> None:
    following, preceding = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = torch.zeros(4, device="cuda")
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((4,), float(world.rank), device="cuda"), following),
            dist.P2POp(dist.irecv, received, preceding),
        ]
    ):
        work.wait()
    assert received.tolist() == [preceding] * 4


def case_asynchronous(world: Any) -> None:
    tensor = torch.ones(2, device="cuda")
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.tolist() == [world.size] * 2
