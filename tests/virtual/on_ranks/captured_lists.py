"""Collectives of lists of tensors within CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def replayed(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture `call`, which has run once before."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def case_all_gather_into_a_list(world: Any) -> None:
    mine = torch.zeros(4, device="cuda")
    parts = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    graph = replayed(lambda: dist.all_gather(parts, mine))
    for step in (1, 2):
        mine.fill_(step * 10 + world.rank)
        graph.replay()
        assert [part.tolist() for part in parts] == [
            [step * 10 + rank] * 4 for rank in range(world.size)
        ]


def case_reduce_scatter_from_a_list(world: Any) -> None:
    given = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    result = torch.zeros(4, device="cuda")
    graph = replayed(lambda: dist.reduce_scatter(result, given))
    for step in (1, 2):
        for index, part in enumerate(given):
            part.fill_(step * (world.rank + 1) + index)
        graph.replay()
        total = step * sum(range(1, world.size + 1)) + world.size * world.rank
        assert result.tolist() == [total] * 4


def case_all_to_all_of_lists(world: Any) -> None:
    given = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    taken = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    graph = replayed(lambda: dist.all_to_all(taken, given))
    for step in (1, 2):
        for index, part in enumerate(given):
            part.fill_(step * 100 + world.rank * 10 + index)
        graph.replay()
        assert [part.tolist() for part in taken] == [
            [step * 100 + rank * 10 + world.rank] * 4 for rank in range(world.size)
        ]


def case_gather_and_scatter(world: Any) -> None:
    root = 1
    lists = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    there = lists if world.rank == root else None
    mine = torch.zeros(4, device="cuda")
    gathers = replayed(lambda: dist.gather(mine, there, dst=root))
    scatters = replayed(lambda: dist.scatter(mine, there, src=root))
    for step in (1, 2):
        mine.fill_(step * 10 + world.rank)
        gathers.replay()
        if world.rank == root:
            assert [part.tolist() for part in lists] == [
                [step * 10 + rank] * 4 for rank in range(world.size)
            ]
            for part in lists:
                part.add_(100)
        scatters.replay()
        assert mine.tolist() == [100 + step * 10 + world.rank] * 4


def case_a_result_made_within(world: Any) -> None:
    mine = torch.zeros(4, device="cuda")

    def call() -> torch.Tensor:
        parts = [torch.empty(4, device="cuda") for _ in range(world.size)]
        dist.all_gather(parts, mine * 2)
        return torch.stack(parts).sum(0)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = call()
    for step in (1, 2):
        mine.fill_(step)
        graph.replay()
        assert total.tolist() == [2 * step * world.size] * 4


def case_several_at_once(world: Any) -> None:
    given = [torch.zeros(2, device="cuda") for _ in range(2)]
    taken = [torch.zeros(2 * world.size, device="cuda") for _ in range(2)]
    group: Any = dist.group.WORLD
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def call() -> None:
        with dist._coalescing_manager(group, torch.device("cuda"), async_ops=True) as works:
            for into, part in zip(taken, given, strict=True):
                all_gather(into, part)
        works.wait()

    graph = replayed(call)
    for step in (1, 2):
        for index, part in enumerate(given):
            part.fill_(step * 100 + index * 10 + world.rank)
        graph.replay()
        assert [into[::2].tolist() for into in taken] == [
            [step * 100 + index * 10 + rank for rank in range(world.size)] for index in range(2)
        ]
