"""A shard of every parameter on each rank: FSDP and checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from learner import check_equal, has_values, new_model, new_model_trained, optimizer_of, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard


def shard(model: nn.Sequential, **options: Any) -> nn.Module:
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def check_sharded(world: Any, dtype: torch.dtype = torch.float64, **options: Any) -> None:
    model = new_model(dtype=dtype)
    expected = new_model_trained(dtype=dtype)
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
    expected = new_model_trained()
    shard(model.cpu(), offload_policy=CPUOffloadPolicy())
    train(model, optimizer_of(model.parameters()), rank=world.rank, ranks=world.size)
    for actual, reference in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual.cuda().full_tensor(), reference, rtol=0, atol=1e-9)


def case_fsdp1(world: Any) -> None:
    model = new_model()
    expected = new_model_trained()
    wrapped = FullyShardedDataParallel(model, device_id=world.rank, use_orig_params=True)
    train(wrapped, optimizer_of(wrapped.parameters()), rank=world.rank, ranks=world.size)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        check_equal(wrapped, expected)


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
