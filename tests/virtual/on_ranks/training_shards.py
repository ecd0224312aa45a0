"""A shard of every parameter on each rank: FSDP, tensor parallelism, both, and checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as dtensor
from learner import check_equal, has_values, new_model, optimizer_of, train, train_reference
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def shard(model: nn.Sequential, **options: Any) -> nn.Module:
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def check_sharded(world: Any, dtype: torch.dtype = torch.float64, **options: Any) -> None:
    model = new_model(dtype=dtype)
    expected = train_reference(model, dtype)
    shard(model, **options)
    train(model, optimizer_of(model.parameters()), dtype, rank=world.rank, ranks=world.size)
    check_equal(model, expected)


def case_fsdp2(world: Any) -> None:
    check_sharded(world)
    check_sharded(world, torch.float32)
    check_sharded(world, reshard_after_forward=False)


def case_fsdp2_on_two_axes(world: Any) -> None:
    names = ("replicas", "shards")
    check_sharded(world, mesh=init_device_mesh("cuda", (2, world.size // 2), mesh_dim_names=names))


def case_fsdp2_with_cpu_offload(world: Any) -> None:
    if not has_values():
        return  # gradients are offloaded to the CPU, which needs values
    model = new_model()
    expected = train_reference(model)
    shard(model.cpu(), offload_policy=CPUOffloadPolicy())
    train(model, optimizer_of(model.parameters()), rank=world.rank, ranks=world.size)
    for actual, reference in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual.cuda().full_tensor(), reference, rtol=0, atol=1e-9)


def case_fsdp1(world: Any) -> None:
    model = new_model()
    expected = train_reference(model)
    wrapped = FullyShardedDataParallel(model, device_id=world.rank, use_orig_params=True)
    train(wrapped, optimizer_of(wrapped.parameters()), rank=world.rank, ranks=world.size)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        check_equal(wrapped, expected)


def check_tensor_parallel(mesh: DeviceMesh, dtype: torch.dtype) -> None:
    model = new_model(dtype=dtype)
    expected = train_reference(model, dtype)
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


def case_checkpoints(world: Any) -> None:
    folders = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(folders, 0)
    folder = Path(str(folders[0]))
    model = shard(new_model())
    optimizer = optimizer_of(model.parameters())
    train(model, optimizer, rank=world.rank, ranks=world.size)
    model_state_now, optimizer_state_now = get_state_dict(model, optimizer)
    if not has_values():
        return  # no values to save
    dcp.save(
        {"model": model_state_now, "optimizer": optimizer_state_now}, checkpoint_id=folder / "now"
    )
    group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    dcp.async_save(
        {"model": model_state_now}, checkpoint_id=folder / "later", process_group=group
    ).result()
    restored = shard(new_model())
    restored_optimizer = optimizer_of(restored.parameters())
    model_state, optimizer_state = get_state_dict(restored, restored_optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder / "now")
    set_state_dict(
        restored,
        restored_optimizer,
        model_state_dict=model_state,
        optim_state_dict=optimizer_state,
    )
    for actual, reference in zip(restored.parameters(), model.parameters(), strict=True):
        assert torch.equal(actual.to_local(), reference.to_local())
