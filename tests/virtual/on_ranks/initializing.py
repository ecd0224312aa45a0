"""Ways to initialize a world and to split it. Each case initializes its own world, in one store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import LEGACY, backend_of, is_second


def initialize(world: Any, name: str, *backend: str, **options: Any) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.PrefixStore(name, world.store)
    dist.init_process_group(
        *backend, store=store, rank=world.rank, world_size=world.size, **options
    )


def check_works(
    world: Any, device: str = "cuda", group: Any = None, size: int | None = None
) -> None:
    tensor = torch.ones(3, device=device)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size or world.size] * 3


def case_no_backend(world: Any) -> None:
    initialize(world, "none")
    check_works(world)
    assert "nccl" in dist.get_backend_config()


def case_a_backend_for_each_device(world: Any) -> None:
    initialize(world, "both", "cpu:gloo,cuda:nccl")
    check_works(world)
    check_works(world, "cpu")
    assert type(backend_of()).__name__.startswith("ProcessGroupNCCL")


def case_gloo_for_all_devices(world: Any) -> None:
    initialize(world, "gloo", "gloo")
    check_works(world)
    check_works(world, "cpu")
    check_works(world, "cuda:0")  # one GPU for all ranks


def case_repeated_worlds_in_one_store(world: Any) -> None:
    for _ in range(6):
        initialize(world, "again", "nccl")
        check_works(world)


def case_default_timeout(world: Any) -> None:
    initialize(world, "timeout", "nccl")
    options = dist.group.WORLD._get_backend(torch.device("cuda")).options
    assert options._timeout == timedelta(minutes=10)


def case_bound_device(world: Any) -> None:
    for backend in ("nccl", LEGACY):
        initialize(world, f"device {backend}", backend, device_id=torch.device(world.device))
        dist.barrier()
        check_works(world)
        error, text = (
            (RuntimeError, f"Expected tensor on {world.device} but found tensor on cuda:")
            if is_second()
            else (ValueError, "tensor not on device passed to init_process_group")
        )
        with pytest.raises(error, match=text):
            dist.all_reduce(torch.ones(1, device=f"cuda:{(world.rank + 1) % world.size}"))
        check_works(world)


def case_split_groups(world: Any) -> None:
    initialize(world, "split", LEGACY, device_id=torch.device(world.device))
    parent = dist.group.WORLD._get_backend(torch.device("cuda"))
    half = world.size // 2
    parts = [list(range(half)), list(range(half, world.size))]
    group = dist.split_group(split_ranks=parts)
    mine = parts[0] if world.rank in parts[0] else parts[1]
    check_works(world, group=group, size=len(mine))
    assert dist.get_process_group_ranks(group) == mine
    assert parent.comm_split_count() == 1
    group = dist.new_group([0, 1])
    if world.rank < 2:
        check_works(world, group=group, size=2)
    assert parent.comm_split_count() == 2


def case_repeated_worlds(world: Any) -> None:
    for number in range(3):
        initialize(world, f"again {number}", "nccl")
        check_works(world)
