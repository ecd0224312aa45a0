"""What NCCL's process group refuses, in its words, before anything moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def case_bitwise_reductions(world: Any) -> None:
    for op, name in (
        (dist.ReduceOp.BAND, "BAND"),
        (dist.ReduceOp.BOR, "BOR"),
        (dist.ReduceOp.BXOR, "BXOR"),
    ):
        with pytest.raises(ValueError, match=f"Cannot use ReduceOp.{name} with NCCL"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32, device="cuda"), op)


def case_types(world: Any) -> None:
    def truths(op: Any) -> Callable[[], object]:
        return lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool, device="cuda"), op)

    words = "Input tensor data type is not supported for NCCL process group: Short"
    for call, text in (
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16, device="cuda")), words),
        (lambda: dist.broadcast(torch.ones(2, dtype=torch.int16, device="cuda"), 0), words),
        (truths(dist.ReduceOp.AVG), "Cannot use ReduceOp.AVG with boolean inputs"),
        (truths(dist._make_nccl_premul_sum(2.0)), "PreMulSum Data type must be half, float"),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    eight_bits = torch.zeros(2, device="cuda").to(torch.float8_e4m3fnuz)
    with pytest.raises(RuntimeError, match="Unsupported Float8 type for NCCL reduction"):
        dist.all_reduce(eight_bits)


def case_places(world: Any) -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    with pytest.raises(ValueError, match="Tensors must be CUDA and dense"):
        backend.allreduce([torch.ones(2)], dist.AllreduceOptions())
    with pytest.raises(RuntimeError, match="does not support all_reduce with sparse tensors"):
        dist.all_reduce(torch.eye(2, device="cuda").to_sparse())


def case_gaps(world: Any) -> None:
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


def case_any_source(world: Any) -> None:
    with pytest.raises(NotImplementedError, match="does not support recvAnysource"):
        dist.recv(torch.zeros(2, device="cuda"))


def case_all_is_well_afterwards(world: Any) -> None:
    tensor = torch.ones(2, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size] * 2
