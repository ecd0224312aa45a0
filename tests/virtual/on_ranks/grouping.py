"""Process groups: their properties, subgroups, split groups, meshes, objects."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import LEGACY, backend_of, is_second
from torch.distributed.device_mesh import init_device_mesh


def sum_of_ranks(world: Any, group: Any) -> float:
    tensor = torch.full((1,), float(world.rank), device="cuda")
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def case_names(world: Any) -> None:
    assert dist.get_backend() == "nccl"
    assert dist.is_nccl_available()
    assert dist.get_backend_config() in ("nccl", "cuda:nccl")
    backend = backend_of()
    assert backend.name() == ("nccl2" if is_second() else "nccl")
    assert backend.options._timeout == timedelta(seconds=30)
    assert torch.cuda.nccl.version()[0] == 2


def case_sub_groups(world: Any) -> None:
    evens = list(range(0, world.size, 2))
    group = dist.new_group(evens)
    if world.rank % 2 == 0:
        assert sum_of_ranks(world, group) == sum(evens)
        assert dist.get_rank(group) == world.rank // 2
        tensor = torch.full((1,), float(world.rank), device="cuda")
        dist.broadcast(tensor, evens[-1], group=group)
        assert tensor.item() == evens[-1]
    group, _ = dist.new_subgroups(2)
    low = world.rank // 2 * 2
    assert sum_of_ranks(world, group) == 2 * low + 1


def case_options(world: Any) -> None:
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 4
    group = dist.new_group(pg_options=options, timeout=timedelta(minutes=10))
    assert sum_of_ranks(world, group) == sum(range(world.size))
    kept = group._get_backend(torch.device("cuda")).options
    assert kept.is_high_priority_stream
    assert kept.config.min_ctas == 4
    assert kept._timeout == timedelta(minutes=10)


def case_groups_start_few_threads(world: Any) -> None:
    # A thread for each group that polls every few milliseconds would keep the cores busy.
    before = len(list(Path("/proc/self/task").iterdir()))
    groups = [dist.new_group() for _ in range(10)]
    threads = len(list(Path("/proc/self/task").iterdir())) - before
    assert threads <= 2 * len(groups)
    assert sum_of_ranks(world, groups[-1]) == sum(range(world.size))


def case_meshes(world: Any) -> None:
    mesh = init_device_mesh("cuda", (2, world.size // 2), mesh_dim_names=("dp", "tp"))
    assert mesh.get_group("tp").size() == world.size // 2
    half = world.size // 2
    low = world.rank // half * half
    assert sum_of_ranks(world, mesh.get_group("tp")) == sum(range(low, low + half))
    assert sum_of_ranks(world, mesh.get_group("dp")) == 2 * (world.rank % half) + half


def case_objects(world: Any) -> None:
    mine = {"rank": world.rank, "text": "x" * 10 * world.rank}
    all_objects: list[Any] = [None] * world.size
    dist.all_gather_object(all_objects, mine)
    assert all_objects == [{"rank": rank, "text": "x" * 10 * rank} for rank in range(world.size)]
    gathered = [None] * world.size if world.rank == 1 else None
    dist.gather_object(mine, gathered, dst=1)
    assert gathered is None or gathered == all_objects
    objects = [mine, [1, 2], None] if world.rank == 2 else [None] * 3
    dist.broadcast_object_list(objects, src=2)
    assert objects == [all_objects[2], [1, 2], None]
    output: list[Any] = [None]
    dist.scatter_object_list(output, all_objects if world.rank == 0 else None, src=0)
    assert output == [mine]
    if world.rank == 0:
        dist.send_object_list([mine, "end"], dst=1)
    elif world.rank == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [all_objects[0], "end"]


def case_barriers(world: Any) -> None:
    dist.barrier(device_ids=[world.rank])
    dist.barrier(group=world.groups[2], device_ids=[world.rank]) if world.rank < 2 else None
    with pytest.raises(ValueError, match="GLOO"):
        dist.monitored_barrier()


def case_destroying_one_group(world: Any) -> None:
    group = dist.new_group()
    assert sum_of_ranks(world, group) == sum(range(world.size))
    backend = group._get_backend(torch.device("cuda"))
    dist.destroy_process_group(group)
    with pytest.raises(dist.DistBackendError, match="closed"):
        backend.allreduce([torch.ones(1, device="cuda")], dist.AllreduceOptions())
    assert sum_of_ranks(world, None) == sum(range(world.size))


def case_groups_connect_when_they_first_meet(world: Any) -> None:
    if dist.group.WORLD.bound_device_id is not None:  # type: ignore[union-attr]
        return  # new groups have its device, and connect at once
    lazy = backend_of(dist.new_group(backend=LEGACY))
    assert not lazy._is_initialized()
    lazy.allreduce([torch.ones(1, device="cuda")], dist.AllreduceOptions()).wait()
    assert lazy._is_initialized()
    bound = dist.new_group(backend=LEGACY, device_id=torch.device(world.device))
    assert backend_of(bound)._is_initialized()
