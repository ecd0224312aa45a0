"""Errors that NCCL's process group raises for its arguments, before any data moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import LEGACY, backend_of, is_second
from standard_error import standard_error_discarded
from torch._C import _distributed_c10d as c10d

# PyTorch 2.13 renamed these functions and deprecated the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def case_bitwise_reductions(world: Any) -> None:
    for op, name in (
        (dist.ReduceOp.BAND, "BAND"),
        (dist.ReduceOp.BOR, "BOR"),
        (dist.ReduceOp.BXOR, "BXOR"),
    ):
        with pytest.raises(ValueError, match=f"Cannot use ReduceOp.{name} with NCCL"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32, device="cuda"), op)


def case_unsupported_dtypes(world: Any) -> None:
    def reduce_booleans(op: Any) -> Callable[[], object]:
        return lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool, device="cuda"), op)

    words = "Input tensor data type is not supported for NCCL process group: Short"
    error: type[Exception] = TypeError
    if is_second():
        error, words = RuntimeError, "Unsupported tensor data type for NCCL"
    for call in (
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16, device="cuda")),
        lambda: dist.broadcast(torch.ones(2, dtype=torch.int16, device="cuda"), 0),
    ):
        with pytest.raises(error, match=words):
            call()
    for call, text in (
        (reduce_booleans(dist.ReduceOp.AVG), "Cannot use ReduceOp.AVG with boolean inputs"),
        (
            reduce_booleans(dist._make_nccl_premul_sum(2.0)),
            "PreMulSum Data type must be half, float",
        ),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    float8 = torch.zeros(2, device="cuda").to(torch.float8_e4m3fnuz)
    with pytest.raises(RuntimeError, match="Unsupported Float8 type for NCCL reduction"):
        dist.all_reduce(float8)


def case_float8_sums_need_compute_capability_9(world: Any) -> None:
    float8 = torch.ones(world.size, device="cuda").to(torch.float8_e5m2)
    row = float8[:1].clone()
    for call in (
        lambda: dist.all_reduce(float8),
        lambda: dist.reduce(float8, 0),
        lambda: dist.reduce_scatter(row, list(float8.split(1))),
        lambda: reduce_scatter_single(row, float8),
    ):
        with pytest.raises(dist.DistBackendError, match="FP8 reduction support begins with sm90"):
            call()
    all_gather_single(float8, row)  # moves data only


def sending_calls(world: Any, group: Any, row: torch.Tensor) -> Iterator[Callable[[], object]]:
    many = row.repeat(world.size)
    yield lambda: all_gather_single(many, row, group=group)
    yield lambda: dist.all_to_all_single(row.clone(), row, group=group)
    yield lambda: dist.send(row, (world.rank + 1) % world.size, group=group)
    if row.dtype != torch.float8_e4m3fn:
        yield lambda: dist.all_reduce(row, group=group)
        yield lambda: reduce_scatter_single(row[:1], row, group=group)


def case_nan_check(world: Any) -> None:
    os.environ["TORCH_NCCL_NAN_CHECK"] = "1"
    group = dist.new_group(backend=LEGACY)
    del os.environ["TORCH_NCCL_NAN_CHECK"]
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.float8_e4m3fn):
        bad = torch.tensor([1.0] * (world.size - 1) + [float("nan")]).to(dtype).cuda()
        for call in sending_calls(world, group, bad):
            with (
                standard_error_discarded(),
                pytest.raises(torch.AcceleratorError, match="device-side assert triggered"),
            ):
                call()
    # A tensor that is overwritten may contain NaN.
    received = torch.full((2,), float("nan") if world.rank else 1.0, device="cuda")
    dist.broadcast(received, 0, group=group)
    assert received.tolist() == [1.0, 1.0]
    backend = backend_of(group)
    backend._set_enable_nan_check(False)
    sums = torch.full((2,), float("nan"), device="cuda")
    dist.all_reduce(sums, group=group)
    assert sums.isnan().all()


def case_tensors_not_on_a_gpu(world: Any) -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    with pytest.raises(ValueError, match="Tensors must be CUDA and dense"):
        backend.allreduce([torch.ones(2)], dist.AllreduceOptions())
    with pytest.raises(RuntimeError, match="does not support all_reduce with sparse tensors"):
        dist.all_reduce(torch.eye(2, device="cuda").to_sparse())


def case_non_contiguous_tensors(world: Any) -> None:
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.all_reduce(torch.ones(4, 4, device="cuda")[:, :2])


def case_sizes(world: Any) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))

    def zeros(length: int) -> torch.Tensor:
        return torch.zeros(length, device="cuda")

    with pytest.raises(ValueError, match="must be equal to world_size times input tensor size"):
        backend._allgather_base(zeros(3), zeros(3), c10d.AllgatherOptions())
    with pytest.raises(ValueError, match="must be the same size as output size times world size"):
        backend._reduce_scatter_base(zeros(3), zeros(3), c10d.ReduceScatterOptions())
    with pytest.raises(RuntimeError, match="does not divide equally across group size"):
        dist.all_to_all_single(zeros(world.size + 1), zeros(world.size + 1))
    with pytest.raises(RuntimeError, match="Number of tensor splits not equal to group size"):
        dist.all_to_all_single(zeros(2), zeros(2), [1, 1, 1], [1, 1, 1])
    with pytest.raises(RuntimeError, match="Expecting one tensor only but got multiple"):
        backend.allreduce([zeros(1), zeros(1)], dist.AllreduceOptions())


def case_lists(world: Any) -> None:
    size, device = world.size, world.device
    other = f"cuda:{(world.rank + 1) % size}"
    row = torch.zeros(2, device=device)
    every = [torch.zeros(2, device=device) for _ in range(size)]
    with_gap, on_other, with_integers = list(every), list(every), list(every)
    with_gap[1] = torch.zeros(4, device=device)[::2]
    on_other[1] = torch.zeros(2, device=other)
    with_integers[1] = torch.zeros(2, device=device, dtype=torch.int32)
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    gather, scatter, list_of_all = c10d.GatherOptions(), c10d.ScatterOptions(), "same as size of"
    for options in (gather, scatter):
        options.rootRank = (world.rank + 1) % size
    words = f"Output list size should be {size}, {list_of_all}"
    for error, text, call in (
        (ValueError, "non-overlapping and dense", lambda: backend.allgather([with_gap], [row])),
        (ValueError, "on the same device", lambda: backend.allgather([on_other], [row])),
        (TypeError, "must have identical type", lambda: backend.allgather([with_integers], [row])),
        (
            ValueError,
            f"list size {size - 1}. {words}",
            lambda: backend.allgather([every[1:]], [row]),
        ),
        (
            ValueError,
            "requires empty output on non-root",
            lambda: backend.gather([every], [row], gather),
        ),
        (
            ValueError,
            "requires empty input on non-root",
            lambda: backend.scatter([row], [every], scatter),
        ),
    ):
        with pytest.raises(error, match=text):
            call()
    for options in (gather, scatter):
        options.rootRank = size
    with pytest.raises(ValueError, match=f"gather: invalid root rank: {size}"):
        backend.gather([every], [row], gather)
    with pytest.raises(ValueError, match=f"scatter: invalid root rank: {size}"):
        backend.scatter([row], [every], scatter)


def case_any_source(world: Any) -> None:
    error = RuntimeError if is_second() else NotImplementedError
    with pytest.raises(error, match="does not support recvAnysource"):
        dist.recv(torch.zeros(2, device="cuda"))


def case_the_group_still_works(world: Any) -> None:
    tensor = torch.ones(2, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size] * 2
