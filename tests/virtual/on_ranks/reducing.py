"""Collectives that reduce data: each operation, with each dtype that NCCL adds, in groups of 2 or
more ranks. The values are small, so that sums are exact in every dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [*FLOATING, *INTEGERS, *FLOAT8, torch.bool]
ROW = 5

OPERATIONS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


def row(rank: int, dtype: torch.dtype, length: int = ROW) -> Tensor:
    numbers = (torch.arange(length) + rank) % 3
    if dtype == torch.bool:
        return numbers == 0
    # Averages of integers round towards zero, which only negative values show.
    return numbers.to(dtype) if dtype == torch.uint8 else (numbers - 2).to(dtype)


def reduce_on_cpu(op: Any, rows: list[Tensor]) -> Tensor:
    """Reduce on the CPU as the ranks do: in rank order, rounding after each step."""
    dtype = rows[0].dtype
    wide = torch.float32 if dtype in FLOAT8 else torch.uint8 if dtype == torch.bool else dtype
    if op == dist.ReduceOp.AVG:
        if dtype.is_floating_point:
            rows = [(row.to(wide) * (1 / len(rows))).to(dtype) for row in rows]
            return reduce_on_cpu(dist.ReduceOp.SUM, rows)
        total = functools.reduce(torch.add, rows)
        return total.div(len(rows), rounding_mode="trunc").to(dtype)
    # A sum of booleans is true if any of them is.
    function = torch.maximum if dtype == torch.bool and op == dist.ReduceOp.SUM else OPERATIONS[op]
    return functools.reduce(lambda a, b: function(a.to(wide), b.to(wide)).to(dtype), rows)


def check_equal(found: Tensor, expected: Tensor) -> None:
    host = found.cpu()
    if host.dtype in FLOAT8:
        host, expected = host.float(), expected.float()
    assert host.dtype == expected.dtype
    assert torch.equal(host, expected), (host, expected)


def reductions_of_groups(world: Any) -> Any:
    for size, group in world.own_groups():
        for dtype in DTYPES:
            for op in (*OPERATIONS, dist.ReduceOp.AVG):
                if dtype != torch.bool or op != dist.ReduceOp.AVG:
                    yield size, group, dtype, op


def case_all_reduce(world: Any) -> None:
    for size, group, dtype, op in reductions_of_groups(world):
        tensor = row(world.rank, dtype).cuda()
        dist.all_reduce(tensor, op, group=group)
        check_equal(tensor, reduce_on_cpu(op, [row(rank, dtype) for rank in range(size)]))


def case_reduce(world: Any) -> None:
    for size, group in world.own_groups():
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            for op in (*OPERATIONS, dist.ReduceOp.AVG):
                tensor = row(world.rank, dtype).cuda()
                dist.reduce(tensor, size - 1, op, group=group)
                if world.rank == size - 1:
                    check_equal(
                        tensor, reduce_on_cpu(op, [row(rank, dtype) for rank in range(size)])
                    )


def case_reduce_scatter_single(world: Any) -> None:
    for size, group in world.own_groups():
        for dtype in DTYPES:
            output = torch.zeros(ROW, device="cuda").to(dtype)
            scatter_single(output, row(world.rank, dtype, size * ROW).cuda(), group=group)
            rows = [row(rank, dtype, size * ROW).split(ROW)[world.rank] for rank in range(size)]
            check_equal(output, reduce_on_cpu(dist.ReduceOp.SUM, rows))


def case_reduce_scatter_of_a_list(world: Any) -> None:
    for size, group in world.own_groups():
        for dtype in (torch.float32, torch.int32):
            inputs = [row(world.rank + to, dtype).cuda() for to in range(size)]
            output = torch.zeros(ROW, dtype=dtype, device="cuda")
            dist.reduce_scatter(output, inputs, dist.ReduceOp.MAX, group=group)
            rows = [row(rank + world.rank, dtype) for rank in range(size)]
            check_equal(output, reduce_on_cpu(dist.ReduceOp.MAX, rows))


def case_reduce_scatter_in_place(world: Any) -> None:
    size = world.size
    sent = row(world.rank, torch.float32, size * ROW).cuda()
    output = sent[world.rank * ROW : (world.rank + 1) * ROW]
    scatter_single(output, sent)
    rows = [row(rank, torch.float32, size * ROW).split(ROW)[world.rank] for rank in range(size)]
    check_equal(output, reduce_on_cpu(dist.ReduceOp.SUM, rows))


def case_all_reduce_of_long_rows(world: Any) -> None:
    # Long enough to be split among the ranks, into unequal parts.
    length = 20_003
    for size, group in world.own_groups():
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            tensor = row(world.rank, torch.float32, length).cuda()
            dist.all_reduce(tensor, op, group=group)
            check_equal(
                tensor,
                reduce_on_cpu(op, [row(rank, torch.float32, length) for rank in range(size)]),
            )


def case_all_reduce_in_inference_mode(world: Any) -> None:
    for length in (ROW, 20_003):
        with torch.inference_mode():
            tensor = row(world.rank, torch.float32, length).cuda()
            dist.all_reduce(tensor)
        rows = [row(rank, torch.float32, length) for rank in range(world.size)]
        check_equal(tensor, reduce_on_cpu(dist.ReduceOp.SUM, rows))


def case_all_ranks_have_the_same_bits(world: Any) -> None:
    torch.manual_seed(world.rank)
    tensor = torch.randn(1000, device="cuda")
    dist.all_reduce(tensor)
    results = [torch.empty_like(tensor) for _ in range(world.size)]
    dist.all_gather(results, tensor)
    assert all(torch.equal(result, tensor) for result in results)


def case_premultiplied_sum(world: Any) -> None:
    for size, group in world.own_groups():
        for dtype in FLOATING:
            for factor in (3.0, torch.tensor([2.0], device="cuda").to(dtype)):
                op = dist._make_nccl_premul_sum(factor)
                tensor = row(world.rank, dtype).cuda()
                dist.all_reduce(tensor, op, group=group)
                rows = [(row(rank, dtype) * float(factor)).to(dtype) for rank in range(size)]
                check_equal(tensor, reduce_on_cpu(dist.ReduceOp.SUM, rows))


def case_complex_numbers(world: Any) -> None:
    def numbers(rank: int) -> Tensor:
        return torch.complex(row(rank, torch.float32), -row(rank, torch.float32))

    for size, group in world.own_groups():
        tensor = numbers(world.rank).cuda()
        dist.all_reduce(tensor, group=group)
        check_equal(tensor, functools.reduce(torch.add, [numbers(rank) for rank in range(size)]))


scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
