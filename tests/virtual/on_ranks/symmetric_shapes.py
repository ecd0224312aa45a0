"""Symmetric memory in shape-only mode: sizes and signals, but no data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from standard_error import standard_error_discarded


def case_sizes_and_signals(world: Any) -> None:
    free = torch.cuda.mem_get_info()[0]
    length = 8 * 2**30  # 32 GiB on each rank, more than a test host has
    tensor = symm_mem.empty(length, device=world.device)
    assert free - torch.cuda.mem_get_info()[0] == 4 * length + 2 * 2**20
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)
    assert handle.buffer_size == 4 * length
    tensor.fill_(1)
    handle.barrier()
    peer = handle.get_buffer((world.rank + 1) % world.size, (length,), torch.float32)
    assert (peer[:10] + 1).shape == (10,)
    name = dist.group.WORLD.group_name
    out = torch.ops.symm_mem.one_shot_all_reduce(tensor[:1024], "sum", name)
    assert out.shape == (1024,)
    torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", name)
    # A separate channel: a peer may not have received the last signal of an operator yet.
    pad = handle.get_signal_pad((world.rank + 1) % world.size, (2 * world.size,))
    torch.ops.symm_mem.stream_write_value32_(pad, world.size + world.rank, 1)
    handle.wait_signal((world.rank - 1) % world.size, channel=1)
    failure = "unspecified launch failure"
    with standard_error_discarded(), pytest.raises(torch.AcceleratorError, match=failure):
        handle.wait_signal((world.rank - 1) % world.size, timeout_ms=100)
    dist.barrier(device_ids=[world.rank])
