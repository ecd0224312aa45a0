"""The ways to make a world and split it. Each case makes its own, out of the same store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def begin(world: Any, name: str, *backend: str, **options: Any) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.PrefixStore(name, world.store)
    dist.init_process_group(
        *backend, store=store, rank=world.rank, world_size=world.size, **options
    )


def works(world: Any, device: str = "cuda", group: Any = None, size: int | None = None) -> None:
    tensor = torch.ones(3, device=device)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size or world.size] * 3


def case_no_backend(world: Any) -> None:
    begin(world, "none")
    works(world)
    assert "nccl" in dist.get_backend_config()


def case_a_backend_for_each_device(world: Any) -> None:
    begin(world, "both", "cpu:gloo,cuda:nccl")
    works(world)
    works(world, "cpu")
    assert isinstance(dist.group.WORLD._get_backend(torch.device("cuda")), dist.ProcessGroupNCCL)


def case_gloo_for_all_devices(world: Any) -> None:
    begin(world, "gloo", "gloo")
    works(world)
    works(world, "cpu")
    works(world, "cuda:0")  # one card for all


def case_again_and_again_in_one_store(world: Any) -> None:
    for _ in range(6):
        begin(world, "again", "nccl")
        works(world)


def case_default_timeout(world: Any) -> None:
    begin(world, "timeout", "nccl")
    options = dist.group.WORLD._get_backend(torch.device("cuda")).options
    assert options._timeout == timedelta(minutes=10)


def case_a_device_of_its_own(world: Any) -> None:
    begin(world, "device", "nccl", device_id=torch.device(world.device))
    dist.barrier()
    works(world)
    other = torch.ones(1, device=f"cuda:{(world.rank + 1) % world.size}")
    try:
        dist.all_reduce(other)
    except ValueError as error:
        assert "backend constrained to" in str(error)  # noqa: PT017 - not raised with one rank
    else:
        raise AssertionError("a tensor of another device was taken")


def case_split_groups(world: Any) -> None:
    begin(world, "split", "nccl", device_id=torch.device(world.device))
    parent = dist.group.WORLD._get_backend(torch.device("cuda"))
    half = world.size // 2
    parts = [list(range(half)), list(range(half, world.size))]
    group = dist.split_group(split_ranks=parts)
    mine = parts[0] if world.rank in parts[0] else parts[1]
    works(world, group=group, size=len(mine))
    assert dist.get_process_group_ranks(group) == mine
    assert parent.comm_split_count() == 1
    group = dist.new_group([0, 1])
    if world.rank < 2:
        works(world, group=group, size=2)
    assert parent.comm_split_count() == 2


def case_again_and_again(world: Any) -> None:
    for number in range(3):
        begin(world, f"again {number}", "nccl")
        works(world)
