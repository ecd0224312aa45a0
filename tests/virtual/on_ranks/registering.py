"""Memory pools with NCCL's allocator, and their registration."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from nccl_classes import HAS_BOTH, LEGACY, backend_of


def case_registered_pool(world: Any) -> None:
    if dist.group.WORLD.bound_device_id is not None:  # type: ignore[union-attr]
        return  # new groups have its device, and connect at once
    group = dist.new_group(backend=LEGACY)
    backend = backend_of(group)
    allocator = backend.mem_allocator
    assert isinstance(allocator, torch._C._cuda_CUDAAllocator)
    pool = torch.cuda.MemPool(allocator)
    assert pool.allocator is allocator
    try:
        backend.register_mem_pool(pool)
    except dist.DistBackendError as error:
        assert "has not been initialized before mem pool creation" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a pool was registered before the ranks connected")
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.ones(2**20, device=world.device)
    dist.all_reduce(tensor, group=group)
    backend.register_mem_pool(pool)
    dist.all_reduce(tensor, group=group)
    assert tensor[0].item() == world.size**2
    backend.deregister_mem_pool(pool)
    backend.register_mem_pool(pool, symm=True)
    dist.all_reduce(tensor, group=group)
    backend.deregister_mem_pool(pool)
    assert [part["segment_pool_id"] for part in pool.snapshot()] == [pool.id]
    dist.destroy_process_group(group)


def case_a_pool_of_a_group_that_has_a_device(world: Any) -> None:
    group = dist.new_group(
        backend="nccl2" if HAS_BOTH else None, device_id=torch.device(world.device)
    )
    backend = backend_of(group)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    backend.register_mem_pool(pool)
    backend.deregister_mem_pool(pool)
