"""Tensors divided among the ranks: tensor parallelism, also with FSDP, and long sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from learner import check_equal, has_values, new_model, new_model_trained, optimizer_of, train
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def check_tensor_parallel(mesh: DeviceMesh, dtype: torch.dtype) -> None:
    model = new_model(dtype=dtype)
    expected = new_model_trained(dtype=dtype)
    plan: dict[str, Any] = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    plan |= dict.fromkeys(("out", "down"), RowwiseParallel())
    for layer in model:
        parallelize_module(layer, mesh["tensors"], plan)
        if mesh["shards"].size() > 1:
            fully_shard(layer, mesh=mesh["shards"])
    # A foreach operator takes no mix of DTensors and plain tensors.
    optimizer = optimizer_of(model.parameters(), foreach=False)
    train(model, optimizer, dtype, rank=mesh.get_local_rank("shards"), ranks=mesh["shards"].size())
    check_equal(model, expected)


def case_tensor_parallel(world: Any) -> None:
    for shape in ((1, world.size), (world.size // 2, 2)):
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("shards", "tensors"))
        check_tensor_parallel(mesh, torch.float64)
        check_tensor_parallel(mesh, torch.float32)


def case_context_parallel(world: Any) -> None:
    """Each rank has a part of the sequence; keys and values travel around the ring."""
    mesh = init_device_mesh("cuda", (world.size,))
    torch.manual_seed(0)
    whole = [torch.randn(1, 2, 64 * world.size, 16).cuda() for _ in range(3)]
    inputs = [tensor.clone().requires_grad_() for tensor in whole]
    functional.scaled_dot_product_attention(*inputs, is_causal=True).square().sum().backward()
    expected = [tensor.grad for tensor in inputs]
    gradients = [torch.empty_like(tensor) for tensor in whole]
    with (
        sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
        context_parallel(
            mesh,
            buffers=[*whole, *expected],
            buffer_seq_dims=[2] * 6,
            no_restore_buffers={*whole, *expected},
        ),
    ):
        local = [tensor.detach().requires_grad_() for tensor in whole]
        functional.scaled_dot_product_attention(*local, is_causal=True).square().sum().backward()
        gradients = [tensor.grad for tensor in local]
    if has_values():
        for actual, reference in zip(gradients, expected, strict=True):
            torch.testing.assert_close(actual, reference, rtol=0, atol=1e-4)


def case_random_numbers_of_dtensors(world: Any) -> None:
    """All ranks advance their generators alike, and shards have different numbers."""
    mesh = init_device_mesh("cuda", (world.size,))
    for placement in (Shard(0), Replicate()):
        torch.manual_seed(7)
        drawn = dtensor.rand(8 * world.size, 4, device_mesh=mesh, placements=[placement])
        offset = torch.cuda.default_generators[world.rank].get_offset()
        offsets: list[Any] = [None] * world.size
        dist.all_gather_object(offsets, offset)
        assert len(set(offsets)) == 1
        whole = drawn.full_tensor()
        if has_values():
            assert whole.unique().numel() == whole.numel()
            torch.testing.assert_close(drawn.sum().full_tensor(), whole.sum())
