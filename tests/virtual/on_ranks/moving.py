"""Collectives that move data, for each type NCCL moves, in groups of 2 and more."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
ROW = 6


def row(rank: int, dtype: torch.dtype, length: int = ROW) -> Tensor:
    """Return what `rank` gives, on the host."""
    numbers = (torch.arange(length) + 3 * rank) % 11
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double()).to(dtype)
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def card(rank: int, dtype: torch.dtype, length: int = ROW) -> Tensor:
    return row(rank, dtype, length).cuda()


def empty(dtype: torch.dtype, length: int = ROW) -> Tensor:
    return torch.zeros(length, dtype=dtype, device="cuda")


def same(found: Tensor, expected: Tensor) -> None:
    assert found.is_cuda
    assert found.dtype == expected.dtype
    host = found.cpu()
    if host.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        host, expected = host.float(), expected.float()
    assert torch.equal(host, expected), (host, expected)


def each(world: Any) -> Any:
    for size, group in world.mine():
        for dtype in DTYPES:
            yield size, group, dtype


def case_broadcast(world: Any) -> None:
    for size, group, dtype in each(world):
        root = size - 1
        tensor = card(world.rank, dtype)
        dist.broadcast(tensor, root, group=group)
        same(tensor, row(root, dtype))


def case_all_gather(world: Any) -> None:
    for size, group, dtype in each(world):
        outputs = [empty(dtype) for _ in range(size)]
        dist.all_gather(outputs, card(world.rank, dtype), group=group)
        for rank, output in enumerate(outputs):
            same(output, row(rank, dtype))


def case_all_gather_of_uneven_tensors(world: Any) -> None:
    for size, group, dtype in each(world):
        outputs = [empty(dtype, rank) for rank in range(size)]
        dist.all_gather(outputs, card(world.rank, dtype, world.rank), group=group)
        for rank, output in enumerate(outputs):
            same(output, row(rank, dtype, rank))


def case_all_gather_single(world: Any) -> None:
    for size, group, dtype in each(world):
        output = empty(dtype, size * ROW)
        gather_single(output, card(world.rank, dtype), group=group)
        same(output, torch.cat([row(rank, dtype) for rank in range(size)]))


def case_all_gather_in_place(world: Any) -> None:
    for size, group in world.mine():
        output = empty(torch.float32, size * ROW)
        mine = output[world.rank * ROW : (world.rank + 1) * ROW]
        mine.copy_(row(world.rank, torch.float32))
        gather_single(output, mine, group=group)
        same(output, torch.cat([row(rank, torch.float32) for rank in range(size)]))


def case_gather(world: Any) -> None:
    for size, group, dtype in each(world):
        root = size // 2
        outputs = [empty(dtype) for _ in range(size)] if world.rank == root else None
        dist.gather(card(world.rank, dtype), outputs, dst=root, group=group)
        for rank, output in enumerate(outputs or []):
            same(output, row(rank, dtype))


def case_scatter(world: Any) -> None:
    for size, group, dtype in each(world):
        inputs = [card(rank, dtype) for rank in range(size)] if world.rank == 0 else None
        output = empty(dtype)
        dist.scatter(output, inputs, src=0, group=group)
        same(output, row(world.rank, dtype))


def case_all_to_all(world: Any) -> None:
    for size, group, dtype in each(world):
        # What rank r gives rank s is r rows of 10 r + s.
        inputs = [card(10 * world.rank + to, dtype, world.rank + 1) for to in range(size)]
        outputs = [empty(dtype, rank + 1) for rank in range(size)]
        dist.all_to_all(outputs, inputs, group=group)
        for rank, output in enumerate(outputs):
            same(output, row(10 * rank + world.rank, dtype, rank + 1))


def case_all_to_all_single(world: Any) -> None:
    for size, group, dtype in each(world):
        given = torch.cat([row(10 * world.rank + to, dtype) for to in range(size)]).cuda()
        output = empty(dtype, size * ROW)
        all_to_all_one(output, given, group=group)
        same(output, torch.cat([row(10 * rank + world.rank, dtype) for rank in range(size)]))


def case_all_to_all_single_with_splits(world: Any) -> None:
    for size, group, dtype in each(world):
        # Rank r gives rank s r + s rows of 2.
        gives = [world.rank + to for to in range(size)]
        takes = [rank + world.rank for rank in range(size)]
        given = card(world.rank, dtype, 2 * sum(gives)).view(-1, 2)
        output = empty(dtype, 2 * sum(takes)).view(-1, 2)
        all_to_all_one(output, given, takes, gives, group=group)
        expected = []
        for rank in range(size):
            splits = [rank + to for to in range(size)]
            of_rank = row(rank, dtype, 2 * sum(splits)).view(-1, 2)
            expected.append(of_rank.split(splits)[world.rank])
        same(output, torch.cat(expected))


def case_send_and_receive(world: Any) -> None:
    for size, group, dtype in each(world):
        # A chain: from each to the next one.
        if world.rank > 0:
            tensor = empty(dtype)
            dist.recv(tensor, world.rank - 1, group=group)
            same(tensor, row(world.rank - 1, dtype))
        if world.rank < size - 1:
            dist.send(card(world.rank, dtype), world.rank + 1, group=group)


def case_large_tensors(world: Any) -> None:
    length = 300_000
    for size, group in world.mine():
        if size not in (2, 3, 8):
            continue
        tensor = card(world.rank, torch.float32, length)
        dist.broadcast(tensor, 1, group=group)
        same(tensor, row(1, torch.float32, length))
        output = empty(torch.float32, size * length)
        gather_single(output, card(world.rank, torch.float32, length), group=group)
        same(output, torch.cat([row(rank, torch.float32, length) for rank in range(size)]))


def case_memory_in_another_order(world: Any) -> None:
    tensor = torch.arange(2.0 * 3 * 4 * 4, device="cuda").view(2, 3, 4, 4)
    mine = (tensor * (world.rank + 1)).contiguous(memory_format=torch.channels_last)
    dist.broadcast(mine, 1)
    assert mine.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mine, 2 * tensor)


def case_empty_tensors(world: Any) -> None:
    dist.all_reduce(empty(torch.float32, 0))
    dist.broadcast(empty(torch.float32, 0), 0)
    gather_single(empty(torch.float32, 0), empty(torch.float32, 0))


# PyTorch 2.13 gave these new names, and warns of the old ones.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
all_to_all_one = dist.all_to_all_single
