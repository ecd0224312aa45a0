"""NCCL's buffers count on the GPU from the first call that needs them, and as long as the group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from anyrig.virtual import memory_outside_allocator

MIB = 2**20
CONNECTION = 14 * MIB  # an H100 has 24 channels for collectives and 32 for messages


def taken() -> int:
    return memory_outside_allocator(torch.cuda.current_device()).communication_bytes


def case_a_group_takes_its_buffers_at_the_first_calls(world: Any) -> None:
    torch.ones(1, device="cuda")  # opens the context
    before, used_before = taken(), torch.cuda.device_memory_used()
    reserved = torch.cuda.memory_reserved()
    group = dist.new_group(list(range(world.size)))
    x = torch.ones(world.size, device="cuda")
    assert taken() == before
    dist.all_reduce(x, group=group)
    dist.all_reduce(x, group=group)
    ring = 24 * min(world.size - 1, 2) * CONNECTION
    assert taken() - before == ring
    dist.all_to_all_single(torch.empty_like(x), x, group=group)
    messages = 32 * (world.size - 1) * CONNECTION
    assert taken() - before == ring + messages
    allocated = torch.cuda.memory_reserved() - reserved
    assert torch.cuda.device_memory_used() - used_before == ring + messages + allocated
    dist.destroy_process_group(group)
    del group
    assert taken() == before
