"""gloo with tensors of cards: a group over gloo beside the world over NCCL."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

from anyrig.virtual import clock

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@cache
def gloo() -> Any:
    return dist.new_group(backend="gloo")


def mine(world: Any, *shape: int, **options: Any) -> torch.Tensor:
    return torch.full(
        shape or (6,), world.rank + 1, device="cuda", **{"dtype": torch.float64} | options
    )


def case_all_reduce(world: Any) -> None:
    ranks = range(1, world.size + 1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for op, expected in (
            (dist.ReduceOp.SUM, sum(ranks)),
            (dist.ReduceOp.MAX, world.size),
            (dist.ReduceOp.AVG, sum(ranks) / world.size),
        ):
            if dtype.is_floating_point or op != dist.ReduceOp.AVG:
                x = mine(world, dtype=dtype)
                dist.all_reduce(x, op, group=gloo())
                assert x.tolist() == [expected] * 6
                assert x.device == torch.device(world.device)
    strided = mine(world, 4, 3)[:, ::2]
    work = dist.all_reduce(strided, group=gloo(), async_op=True)
    work.wait()
    work.wait()
    assert strided.tolist() == [[sum(ranks)] * 2] * 4
    assert work.is_completed()
    x = mine(world)
    (found,) = dist.all_reduce(x, group=gloo(), async_op=True).get_future().wait()
    assert found.data_ptr() == x.data_ptr()
    assert x.tolist() == [sum(ranks)] * 6


def case_sparse_all_reduce(world: Any) -> None:
    x = torch.eye(3, device="cuda").to_sparse()
    dist.all_reduce(x, group=gloo())
    assert x.to_dense().tolist() == (torch.eye(3) * world.size).tolist()


def case_reduce_scatter(world: Any) -> None:
    total = sum(range(1, world.size + 1))
    x = mine(world, 2)
    dist.reduce_scatter(x, list(mine(world, world.size, 2)), group=gloo())
    assert x.tolist() == [total] * 2
    x = mine(world, 2)
    reduce_scatter_single(x, mine(world, 2 * world.size), group=gloo())
    assert x.tolist() == [total] * 2


def case_moving(world: Any) -> None:
    numbers = [float(rank + 1) for rank in range(world.size)]
    x = mine(world)
    dist.broadcast(x, 1, group=gloo())
    assert x.tolist() == [2] * 6
    every = mine(world, world.size)
    all_gather_single(every, mine(world, 1), group=gloo())
    assert every.tolist() == numbers
    dist.all_to_all_single(every, mine(world, world.size), group=gloo())
    assert every.tolist() == numbers
    parts = list(torch.zeros(world.size, 1, device="cuda").double())
    dist.gather(mine(world, 1), parts if world.rank == 0 else None, 0, group=gloo())
    assert [part.item() for part in parts] == (numbers if world.rank == 0 else [0] * world.size)
    x = mine(world, 1)
    own = list(torch.tensor(numbers, device="cuda").double().unsqueeze(1))
    dist.scatter(x, own if world.rank == 0 else None, 0, group=gloo())
    assert x.item() == world.rank + 1


def case_what_a_card_cannot(world: Any) -> None:
    with pytest.raises(RuntimeError, match="Bad address"):
        dist.send(mine(world), (world.rank + 1) % world.size, group=gloo())
    with pytest.raises(RuntimeError, match="Bad address"):
        dist.recv(mine(world), (world.rank + 1) % world.size, group=gloo())
    coalesced = dist.AllreduceCoalescedOptions()
    with pytest.raises(RuntimeError, match="unsupported device type cuda"):
        gloo().allreduce_coalesced([mine(world)], coalesced)
    on_host = torch.ones(2)
    if world.rank == 0:
        dist.send(on_host, 1, group=gloo())
    elif world.rank == 1:
        dist.recv(on_host, 0, group=gloo())


def case_copies_take_time(world: Any) -> None:
    x = mine(world, 2**20)
    dist.all_reduce(x, group=gloo())
    before = clock()
    dist.all_reduce(x, group=gloo())
    after = clock()
    there_and_back = 2 * x.nbytes / 32e9  # of PCIe 4, of which copies reach a part
    here, then = after.devices[world.rank], before.devices[world.rank]
    assert there_and_back < here.copy_seconds - then.copy_seconds < 2 * there_and_back
    assert after.host_seconds - before.host_seconds > there_and_back / 2
