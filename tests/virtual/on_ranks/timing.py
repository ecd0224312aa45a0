"""The virtual time of collectives and messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import is_second
from torch import Tensor
from torch._C import _distributed_c10d as c10d

core = sys.modules["anyrig_virtual_extension"]
kinds = core.CollectiveKind

NUMEL = 2**22
SECOND_CYCLES = int(1.41e9)
LONG_CYCLES = 1000 * SECOND_CYCLES  # longer than the test runs

gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def row(parts: int = 1) -> Tensor:
    return torch.zeros(NUMEL * parts, device="cuda")


def rows(count: int) -> list[Tensor]:
    return [row() for _ in range(count)]


def timed_ms(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier(device_ids=[torch.cuda.current_device()])
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def case_each_collective_takes_the_time_of_its_bytes(world: Any) -> None:
    size, root = world.size, world.rank == 0
    every, each, received = row(size), rows(size), rows(size)
    mine, received_whole = row(), row(size)
    whole = 4 * NUMEL * size
    calls: dict[str, tuple[Callable[[], object], Any, int]] = {
        "all_reduce": (lambda: dist.all_reduce(every), kinds.ALL_REDUCE, whole),
        "broadcast": (lambda: dist.broadcast(every, 1), kinds.BROADCAST, whole),
        "reduce": (lambda: dist.reduce(every, 1), kinds.REDUCE, whole),
        "all_gather": (lambda: dist.all_gather(each, mine), kinds.ALL_GATHER, whole),
        "all_gather_single": (lambda: gather_single(every, mine), kinds.ALL_GATHER, whole),
        "reduce_scatter": (
            lambda: dist.reduce_scatter(mine, each),
            kinds.REDUCE_SCATTER,
            whole,
        ),
        "reduce_scatter_single": (
            lambda: scatter_single(mine, every),
            kinds.REDUCE_SCATTER,
            whole,
        ),
        "all_to_all": (lambda: dist.all_to_all(received, each), kinds.ALL_TO_ALL, whole),
        "all_to_all_single": (
            lambda: dist.all_to_all_single(received_whole, every),
            kinds.ALL_TO_ALL,
            whole,
        ),
        "gather": (lambda: dist.gather(mine, each if root else None), kinds.GATHER, whole),
        "scatter": (lambda: dist.scatter(mine, each if root else None), kinds.SCATTER, whole),
    }
    for name, (call, kind, size_bytes) in calls.items():
        expected_ms = 1e3 * core.collective_seconds(kind, size_bytes, list(range(size)))
        took_ms = timed_ms(call)
        assert took_ms == pytest.approx(expected_ms, rel=0.3), (name, took_ms, expected_ms)
    if world.rank < 2:
        call = (lambda: dist.send(every, 1)) if root else (lambda: dist.recv(every, 0))
        expected_ms = 1e3 * core.collective_seconds(kinds.RECEIVE, whole, [0, 1])
        took_ms = timed_ms(call)
        assert root or took_ms == pytest.approx(expected_ms, rel=0.3)


def case_a_collective_begins_when_the_last_rank_is_ready(world: Any) -> None:
    tensor = torch.ones(4, device="cuda")
    for late in range(world.size):

        def reduce(late: int = late) -> None:
            if world.rank == late:
                torch.cuda._sleep(SECOND_CYCLES)
            dist.all_reduce(tensor)

        took_ms = timed_ms(reduce)
        assert took_ms == pytest.approx(1000, rel=0.05), took_ms


def case_a_barrier_holds_up_the_host(world: Any) -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(LONG_CYCLES)
    event.record()
    dist.all_reduce(torch.ones(4, device="cuda"), async_op=True).wait()
    assert not event.query()
    dist.barrier(device_ids=[world.rank])
    assert event.query()


def case_a_barrier_without_a_device_uses_the_last_one(world: Any) -> None:
    # A group of one rank, whose device is not the one with the index of its group rank.
    group = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    dist.all_reduce(torch.ones(4, device="cuda"), group=group)
    event = torch.cuda.Event()
    torch.cuda._sleep(LONG_CYCLES)
    event.record()
    backend: Any = group._get_backend(torch.device("cuda"))
    backend.barrier(c10d.BarrierOptions()).wait()
    assert event.query()
    other = (world.rank + 1) % world.size
    torch.cuda._sleep(LONG_CYCLES)
    event.record()
    dist.barrier(group=group, device_ids=[other])
    assert event.query() is is_second(group)  # whose barriers use the group's device


def case_durations_are_in_milliseconds(world: Any) -> None:
    group: Any = dist.new_group()
    group._enable_collectives_timing()
    tensor = row()
    work: Any = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    seconds = core.collective_seconds(kinds.ALL_REDUCE, tensor.nbytes, list(range(world.size)))
    took_ms = work._get_duration()
    assert took_ms == pytest.approx(1e3 * seconds, rel=0.3), (took_ms, seconds)


def case_a_received_message_shares_one_direction_of_a_link_with_copies(world: Any) -> None:
    first, second = (torch.zeros(8 * NUMEL, device=device) for device in range(2))
    message, side = row(8), torch.cuda.Stream()

    def copied_beside_ms(destination: Tensor, source: Tensor) -> float:
        def call() -> None:
            if world.rank == 0:
                sent: Any = dist.isend(message, 1)
                while not sent.is_completed():  # else a later case is charged its time
                    time.sleep(0.001)
                return
            dist.recv(message, 0)
            with torch.cuda.stream(side):
                destination.copy_(source, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)

        return timed_ms(call)

    against, along = copied_beside_ms(first, second), copied_beside_ms(second, first)
    assert world.rank == 0 or along > 1.5 * against, (along, against)
