"""gloo with CUDA tensors: a gloo group in addition to the NCCL world."""

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


def own_rows(world: Any, *shape: int, **options: Any) -> torch.Tensor:
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
                x = own_rows(world, dtype=dtype)
                dist.all_reduce(x, op, group=gloo())
                assert x.tolist() == [expected] * 6
                assert x.device == torch.device(world.device)
    strided = own_rows(world, 4, 3)[:, ::2]
    work = dist.all_reduce(strided, group=gloo(), async_op=True)
    work.wait()
    work.wait()
    assert strided.tolist() == [[sum(ranks)] * 2] * 4
    assert work.is_completed()
    x = own_rows(world)
    (found,) = dist.all_reduce(x, group=gloo(), async_op=True).get_future().wait()
    assert found.data_ptr() == x.data_ptr()
    assert x.tolist() == [sum(ranks)] * 6


def case_sparse_all_reduce(world: Any) -> None:
    x = torch.eye(3, device="cuda").to_sparse()
    dist.all_reduce(x, group=gloo())
    assert x.to_dense().tolist() == (torch.eye(3) * world.size).tolist()


def case_reduce_scatter(world: Any) -> None:
    total = sum(range(1, world.size + 1))
    x = own_rows(world, 2)
    dist.reduce_scatter(x, list(own_rows(world, world.size, 2)), group=gloo())
    assert x.tolist() == [total] * 2
    x = own_rows(world, 2)
    reduce_scatter_single(x, own_rows(world, 2 * world.size), group=gloo())
    assert x.tolist() == [total] * 2


def case_moving_collectives(world: Any) -> None:
    numbers = [float(rank + 1) for rank in range(world.size)]
    x = own_rows(world)
    dist.broadcast(x, 1, group=gloo())
    assert x.tolist() == [2] * 6
    every = own_rows(world, world.size)
    all_gather_single(every, own_rows(world, 1), group=gloo())
    assert every.tolist() == numbers
    dist.all_to_all_single(every, own_rows(world, world.size), group=gloo())
    assert every.tolist() == numbers
    parts = list(torch.zeros(world.size, 1, device="cuda").double())
    dist.gather(own_rows(world, 1), parts if world.rank == 0 else None, 0, group=gloo())
    assert [part.item() for part in parts] == (numbers if world.rank == 0 else [0] * world.size)
    x = own_rows(world, 1)
    own = list(torch.tensor(numbers, device="cuda").double().unsqueeze(1))
    dist.scatter(x, own if world.rank == 0 else None, 0, group=gloo())
    assert x.item() == world.rank + 1


def case_unsupported_on_gpus(world: Any) -> None:
    with pytest.raises(RuntimeError, match="Bad address"):
        dist.send(own_rows(world), (world.rank + 1) % world.size, group=gloo())
    with pytest.raises(RuntimeError, match="Bad address"):
        dist.recv(own_rows(world), (world.rank + 1) % world.size, group=gloo())
    coalesced = dist.AllreduceCoalescedOptions()
    with pytest.raises(RuntimeError, match="unsupported device type cuda"):
        gloo().allreduce_coalesced([own_rows(world)], coalesced)
    on_host = torch.ones(2)
    if world.rank == 0:
        dist.send(on_host, 1, group=gloo())
    elif world.rank == 1:
        dist.recv(on_host, 0, group=gloo())


def case_copies_take_time(world: Any) -> None:
    x = own_rows(world, 2**20)
    dist.all_reduce(x, group=gloo())
    before = clock()
    dist.all_reduce(x, group=gloo())
    after = clock()
    round_trip = 2 * x.nbytes / 32e9  # PCIe 4.0; copies reach only part of its rate
    new, old = after.devices[world.rank], before.devices[world.rank]
    assert round_trip < new.copy_seconds - old.copy_seconds < 2 * round_trip
    assert after.host_seconds - before.host_seconds > round_trip / 2
