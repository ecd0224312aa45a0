"""Collectives on lists of tensors in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run `call` once, then capture it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def case_all_gather_into_a_list(world: Any) -> None:
    mine = torch.zeros(4, device="cuda")
    parts = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    graph = capture(lambda: dist.all_gather(parts, mine))
    for step in (1, 2):
        mine.fill_(step * 10 + world.rank)
        graph.replay()
        assert [part.tolist() for part in parts] == [
            [step * 10 + rank] * 4 for rank in range(world.size)
        ]


def case_reduce_scatter_from_a_list(world: Any) -> None:
    inputs = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    result = torch.zeros(4, device="cuda")
    graph = capture(lambda: dist.reduce_scatter(result, inputs))
    for step in (1, 2):
        for index, part in enumerate(inputs):
            part.fill_(step * (world.rank + 1) + index)
        graph.replay()
        total = step * sum(range(1, world.size + 1)) + world.size * world.rank
        assert result.tolist() == [total] * 4


def case_all_to_all_of_lists(world: Any) -> None:
    inputs = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    outputs = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    graph = capture(lambda: dist.all_to_all(outputs, inputs))
    for step in (1, 2):
        for index, part in enumerate(inputs):
            part.fill_(step * 100 + world.rank * 10 + index)
        graph.replay()
        assert [part.tolist() for part in outputs] == [
            [step * 100 + rank * 10 + world.rank] * 4 for rank in range(world.size)
        ]


def case_gather_and_scatter(world: Any) -> None:
    root = 1
    lists = [torch.zeros(4, device="cuda") for _ in range(world.size)]
    root_list = lists if world.rank == root else None
    mine = torch.zeros(4, device="cuda")
    gather_graph = capture(lambda: dist.gather(mine, root_list, dst=root))
    scatter_graph = capture(lambda: dist.scatter(mine, root_list, src=root))
    for step in (1, 2):
        mine.fill_(step * 10 + world.rank)
        gather_graph.replay()
        if world.rank == root:
            assert [part.tolist() for part in lists] == [
                [step * 10 + rank] * 4 for rank in range(world.size)
            ]
            for part in lists:
                part.add_(100)
        scatter_graph.replay()
        assert mine.tolist() == [100 + step * 10 + world.rank] * 4


def case_results_allocated_in_the_graph(world: Any) -> None:
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


def case_coalesced_calls(world: Any) -> None:
    inputs = [torch.zeros(2, device="cuda") for _ in range(2)]
    outputs = [torch.zeros(2 * world.size, device="cuda") for _ in range(2)]
    group: Any = dist.group.WORLD
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def call() -> None:
        with dist._coalescing_manager(group, torch.device("cuda"), async_ops=True) as works:
            for output, part in zip(outputs, inputs, strict=True):
                all_gather(output, part)
        works.wait()

    graph = capture(call)
    for step in (1, 2):
        for index, part in enumerate(inputs):
            part.fill_(step * 100 + index * 10 + world.rank)
        graph.replay()
        assert [output[::2].tolist() for output in outputs] == [
            [step * 100 + index * 10 + rank for rank in range(world.size)] for index in range(2)
        ]
