"""Collectives that move data, with each dtype that NCCL moves, in groups of 2 or more ranks."""

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
    """Return the data that `rank` sends, on the CPU."""
    numbers = (torch.arange(length) + 3 * rank) % 11
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double()).to(dtype)
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def cuda_row(rank: int, dtype: torch.dtype, length: int = ROW) -> Tensor:
    return row(rank, dtype, length).cuda()


def empty(dtype: torch.dtype, length: int = ROW) -> Tensor:
    return torch.zeros(length, dtype=dtype, device="cuda")


def check_equal(found: Tensor, expected: Tensor) -> None:
    assert found.is_cuda
    assert found.dtype == expected.dtype
    host = found.cpu()
    if host.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        host, expected = host.float(), expected.float()
    assert torch.equal(host, expected), (host, expected)


def dtypes_of_groups(world: Any) -> Any:
    for size, group in world.own_groups():
        for dtype in DTYPES:
            yield size, group, dtype


def case_broadcast(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        root = size - 1
        tensor = cuda_row(world.rank, dtype)
        dist.broadcast(tensor, root, group=group)
        check_equal(tensor, row(root, dtype))


def case_all_gather(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        outputs = [empty(dtype) for _ in range(size)]
        dist.all_gather(outputs, cuda_row(world.rank, dtype), group=group)
        for rank, output in enumerate(outputs):
            check_equal(output, row(rank, dtype))


def case_all_gather_of_uneven_tensors(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        outputs = [empty(dtype, rank) for rank in range(size)]
        dist.all_gather(outputs, cuda_row(world.rank, dtype, world.rank), group=group)
        for rank, output in enumerate(outputs):
            check_equal(output, row(rank, dtype, rank))


def case_all_gather_single(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        output = empty(dtype, size * ROW)
        gather_single(output, cuda_row(world.rank, dtype), group=group)
        check_equal(output, torch.cat([row(rank, dtype) for rank in range(size)]))


def case_all_gather_in_place(world: Any) -> None:
    for size, group in world.own_groups():
        output = empty(torch.float32, size * ROW)
        mine = output[world.rank * ROW : (world.rank + 1) * ROW]
        mine.copy_(row(world.rank, torch.float32))
        gather_single(output, mine, group=group)
        check_equal(output, torch.cat([row(rank, torch.float32) for rank in range(size)]))


def case_gather(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        root = size // 2
        outputs = [empty(dtype) for _ in range(size)] if world.rank == root else None
        dist.gather(cuda_row(world.rank, dtype), outputs, dst=root, group=group)
        for rank, output in enumerate(outputs or []):
            check_equal(output, row(rank, dtype))


def case_scatter(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        inputs = [cuda_row(rank, dtype) for rank in range(size)] if world.rank == 0 else None
        output = empty(dtype)
        dist.scatter(output, inputs, src=0, group=group)
        check_equal(output, row(world.rank, dtype))


def case_all_to_all(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        # Rank r sends row 10 r + s to rank s, with r + 1 elements.
        inputs = [cuda_row(10 * world.rank + to, dtype, world.rank + 1) for to in range(size)]
        outputs = [empty(dtype, rank + 1) for rank in range(size)]
        dist.all_to_all(outputs, inputs, group=group)
        for rank, output in enumerate(outputs):
            check_equal(output, row(10 * rank + world.rank, dtype, rank + 1))


def case_all_to_all_single(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        sent = torch.cat([row(10 * world.rank + to, dtype) for to in range(size)]).cuda()
        output = empty(dtype, size * ROW)
        all_to_all_one(output, sent, group=group)
        check_equal(output, torch.cat([row(10 * rank + world.rank, dtype) for rank in range(size)]))


def case_all_to_all_single_with_splits(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        # Rank r sends r + s rows of 2 elements to rank s.
        send_counts = [world.rank + to for to in range(size)]
        receive_counts = [rank + world.rank for rank in range(size)]
        sent = cuda_row(world.rank, dtype, 2 * sum(send_counts)).view(-1, 2)
        output = empty(dtype, 2 * sum(receive_counts)).view(-1, 2)
        all_to_all_one(output, sent, receive_counts, send_counts, group=group)
        expected = []
        for rank in range(size):
            splits = [rank + to for to in range(size)]
            rank_rows = row(rank, dtype, 2 * sum(splits)).view(-1, 2)
            expected.append(rank_rows.split(splits)[world.rank])
        check_equal(output, torch.cat(expected))


def case_send_and_receive(world: Any) -> None:
    for size, group, dtype in dtypes_of_groups(world):
        # A chain: each rank sends to the next one.
        if world.rank > 0:
            tensor = empty(dtype)
            dist.recv(tensor, world.rank - 1, group=group)
            check_equal(tensor, row(world.rank - 1, dtype))
        if world.rank < size - 1:
            dist.send(cuda_row(world.rank, dtype), world.rank + 1, group=group)


def case_large_tensors(world: Any) -> None:
    length = 300_000
    for size, group in world.own_groups():
        if size not in (2, 3, 8):
            continue
        tensor = cuda_row(world.rank, torch.float32, length)
        dist.broadcast(tensor, 1, group=group)
        check_equal(tensor, row(1, torch.float32, length))
        output = empty(torch.float32, size * length)
        gather_single(output, cuda_row(world.rank, torch.float32, length), group=group)
        check_equal(output, torch.cat([row(rank, torch.float32, length) for rank in range(size)]))


def case_channels_last_memory(world: Any) -> None:
    tensor = torch.arange(2.0 * 3 * 4 * 4, device="cuda").view(2, 3, 4, 4)
    mine = (tensor * (world.rank + 1)).contiguous(memory_format=torch.channels_last)
    dist.broadcast(mine, 1)
    assert mine.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mine, 2 * tensor)


def case_empty_tensors(world: Any) -> None:
    dist.all_reduce(empty(torch.float32, 0))
    dist.broadcast(empty(torch.float32, 0), 0)
    gather_single(empty(torch.float32, 0), empty(torch.float32, 0))


# PyTorch 2.13 renamed these functions and deprecated the old names.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
all_to_all_one = dist.all_to_all_single
